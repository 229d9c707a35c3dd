"""Runs tasks: Celery entry point, kinds, tools, shells."""
