"""Celery as the carrier of wake-ups; it decides nothing."""
