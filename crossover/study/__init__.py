"""Studies: many experiments from one file, run under one budget and compared with intervals. papers.py has the studies of the papers."""
