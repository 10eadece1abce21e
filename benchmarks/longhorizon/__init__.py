"""LongHorizon-Bench: regulated cases whose ground truth is proved when they are generated, and again from their files.

python:  cases = generate_cases("mortgage", "paper", count=10, seed=20260420)
files:   write_dataset(directory, ...), read_dataset(directory), verify_case(directory / case_id)
"""
