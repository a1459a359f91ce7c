"""What single papers need beyond tables, figures and verdicts."""
