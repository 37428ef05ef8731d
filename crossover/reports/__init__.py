"""Finished runs for people: run folders, tables for the terminal, pages, and comparisons of several runs. Every figure comes from
records, every dollar from records and `config/pricing.yaml` (bill.py); nothing here starts or follows a run. spending.py decides
whether a budget allows another epoch.
"""
