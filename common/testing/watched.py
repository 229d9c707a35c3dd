"""One job as a test sees it: its tasks, what its transcripts say, and which processes it has left."""
