"""Answers of people to alerts, from a phone: read from Slack threads and from mail, by polling."""
