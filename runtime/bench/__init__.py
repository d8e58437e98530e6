"""`mtrun bench`: paired windows of several configurations in one process, kept one file a window."""
