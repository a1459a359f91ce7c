"""Federated training: knows no paper, no table, no claim."""
