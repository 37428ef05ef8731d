"""The fits of the calibration to what others measured, judged by data that no fit has seen: `python -m lab fit`, `python -m lab judge`."""
