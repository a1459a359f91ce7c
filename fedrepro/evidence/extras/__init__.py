"""What individual papers need beyond tables, figures and verdicts."""
