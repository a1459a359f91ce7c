"""Lessons for a class: pure functions that compute and draw, one module a lesson; `widgets` puts controls on them."""
