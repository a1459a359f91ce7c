"""Lessons for a class: pure functions that compute and draw, one module per lesson; `widgets` adds controls."""
