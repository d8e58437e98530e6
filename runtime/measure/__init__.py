"""What measurements share: windows, settings, statistics, and files that survive a kill."""
