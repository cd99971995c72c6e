"""What the command of any trainer says: its words, scripts and configuration files. Nothing of it is ever executed."""
