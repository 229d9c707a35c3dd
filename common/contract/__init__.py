"""Pure values that cross process borders: no I/O, no asyncio, no redis, celery or anthropic."""
