"""Records, leases, transcripts, inboxes on Redis: every decision is one Lua script."""
