"""Answers in Slack: replies in the thread of an alert and reactions to the alert, polled through the bot's API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slack_sdk import WebClient
from slack_sdk.errors import SlackClientError

from opsctl.alerts.answers.answer import REACTIONS, RawAnswer
from opsctl.alerts.channel_secrets import mask, reveal
from opsctl.alerts.channels.slack import QUIET
from opsctl.alerts.outbox import Undelivered
from opsctl.settings.alerts import SlackTable

TIMEOUT_S = 10
MAX_THREADS = 20
"""Threads that are read in one watch cycle, the newest first."""
MAX_REPLIES = 100


def poll(channel: str, table: SlackTable, references: Mapping[str, str]) -> list[RawAnswer]:
    """Return the answers to the messages in `references`, by Slack's names for them. Raises Undelivered."""
    token = reveal(table, "token")
    client = WebClient(token=token, base_url=table.api_url, timeout=TIMEOUT_S, retry_handlers=[], logger=QUIET)
    answers: list[RawAnswer] = []
    newest = sorted(references.items(), key=lambda pair: pair[1], reverse=True)[:MAX_THREADS]
    try:
        for message, reference in newest:
            thread = client.conversations_replies(channel=table.channel, ts=reference, limit=MAX_REPLIES)
            answers += _read_thread(channel, message, reference, thread.get("messages") or ())
    except (SlackClientError, OSError, ValueError) as error:
        raise Undelivered(f"answers of {channel}: " + mask(str(error), [token])) from None
    return answers


def _read_thread(channel: str, message: str, reference: str, rows: Any) -> Iterator[RawAnswer]:
    for row in _list_objects(rows):
        ts, user = str(row.get("ts", "")), str(row.get("user", ""))
        if ts == reference:
            yield from _read_reactions(channel, message, row)
        elif user and not row.get("bot_id") and not row.get("subtype"):
            yield RawAnswer(
                id=f"{reference}/{ts}", channel=channel, message=message, sender=user, text=str(row.get("text", ""))
            )


def _read_reactions(channel: str, message: str, row: Any) -> Iterator[RawAnswer]:
    for reaction in _list_objects(row.get("reactions")):
        name = str(reaction.get("name", "")).partition("::")[0]  # without the skin tone
        if name not in REACTIONS:
            continue
        users = reaction.get("users")
        for user in users if isinstance(users, list) else ():
            yield RawAnswer(
                id=f"{row.get('ts')}/{REACTIONS[name]}/{user}",
                channel=channel,
                message=message,
                sender=str(user),
                text=REACTIONS[name].value,
            )


def _list_objects(rows: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; nothing for anything else."""
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
