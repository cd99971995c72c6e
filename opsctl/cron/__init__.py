"""What is done while nobody looks: a crontab and drop-in directories, run by ticks that something drives."""
