"""Slack, by an incoming webhook or by a bot; a bot can reply in threads, and read the answers in them."""

import html
import logging
import re
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import URLError

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.webhook import WebhookClient

from opsctl.alerts.answer import RawAnswer, list_objects
from opsctl.alerts.channel_secrets import mask, reveal
from opsctl.alerts.channels.webhook import judge_status
from opsctl.alerts.message import Message
from opsctl.alerts.outbox import Undelivered
from opsctl.base.ports import Runner
from opsctl.base.tables import read_package_table
from opsctl.settings.alert_channels import SlackTable

TIMEOUT_S, POLL_TIMEOUT_S = 15, 10
MAX_THREADS = 20
"""Threads that are read in one watch cycle, the newest first."""
PAGE, MAX_PAGES = 200, 10
"""Messages of a thread in one answer of Slack, and the answers that are read of one thread in a cycle."""
_TABLE = read_package_table("alerts/answers.toml")
REACTIONS: dict[str, str] = _TABLE["reactions"]
MAX_BODY_CHARS = 3500
"""Slack splits longer messages."""
QUOTES = "'''"
QUIET = logging.Logger("slack", logging.CRITICAL)
"""Keeps the library from logging secrets; the error carries the masked text."""
ERROR_NAME = re.compile(r"[a-z_]+")
"""Form of Slack's error names; other text in their place is no answer of Slack."""


class Slack:
    def __init__(self, table: SlackTable, runner: Runner, *, timeout: int = TIMEOUT_S) -> None:  # noqa: ARG002 (every channel takes a runner)
        self._table, self._timeout = table, timeout
        self._webhook, self._token = reveal(table, "webhook"), reveal(table, "token")
        if self._webhook and not self._webhook.startswith(("https://", "http://")):
            raise Undelivered("webhook: must start with https://", is_permanent=True)

    def send(self, message: Message, *, reply_to: str = "") -> str:
        try:
            return self._by_bot(message, reply_to) if self._token else self._by_webhook(message)
        except SlackApiError as error:
            raise self._refused(error) from None
        except (SlackClientError, URLError, HTTPException, OSError, ValueError) as error:
            raise self._failed(error) from None

    def _by_bot(self, message: Message, reply_to: str) -> str:
        client = _open_client(self._table, self._token, self._timeout)
        answer = client.chat_postMessage(
            channel=self._table.channel,
            text=_text(message),
            unfurl_links=False,
            thread_ts=reply_to or None,
            # Replies also appear in the channel: people do not watch threads.
            reply_broadcast=bool(reply_to) or None,
        )
        return str(answer["ts"])

    def _by_webhook(self, message: Message) -> str:
        client = WebhookClient(self._webhook, timeout=self._timeout, retry_handlers=[], logger=QUIET)
        answer = client.send(text=_text(message))
        if answer.status_code != 200:
            raise judge_status(answer.status_code, answer.headers, answer.body, self._masked)
        if answer.body.strip() != "ok":
            raise Undelivered(self._masked(f"answered {answer.body!r} instead of ok"), is_ambiguous=True)
        return ""

    def _refused(self, error: SlackApiError) -> Undelivered:
        answer, data = error.response, error.response.data
        why = str(data.get("error", "")) if isinstance(data, dict) else ""
        if answer.status_code != 200:
            return judge_status(answer.status_code, answer.headers, why, self._masked)
        if not ERROR_NAME.fullmatch(why):
            return Undelivered(self._masked(f"answered {str(why or data)!r}"), is_ambiguous=True)
        return Undelivered(self._masked(why), is_permanent=why in _TABLE["slack"]["permanent"])

    def _failed(self, error: Exception) -> Undelivered:
        reason = error.reason if isinstance(error, URLError) else error
        never_sent = isinstance(error, URLError) or isinstance(reason, ConnectionRefusedError)
        return Undelivered(self._masked(f"{type(reason).__name__}: {reason}"), is_ambiguous=not never_sent)

    def _masked(self, text: str) -> str:
        return "slack: " + mask(text, [self._webhook, self._token])


def _open_client(table: SlackTable, token: str, timeout: int) -> WebClient:
    return WebClient(token=token, base_url=table.api_url, timeout=timeout, retry_handlers=[], logger=QUIET)


def _text(message: Message) -> str:
    body = message.body if len(message.body) <= MAX_BODY_CHARS else message.body[:MAX_BODY_CHARS] + "\n…"
    # Three backticks would end the block, and <!channel> in a log line would notify the whole channel.
    body = body.replace("```", QUOTES)
    return f"*{_escaped(message.subject.replace('```', QUOTES))}*\n```\n{_escaped(body)}```"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def poll(channel: str, table: SlackTable, references: Mapping[str, str]) -> list[RawAnswer]:
    """Return the answers to the messages in `references`, by Slack's names for them. Raises Undelivered."""
    token = reveal(table, "token")
    client = _open_client(table, token, POLL_TIMEOUT_S)
    answers: list[RawAnswer] = []
    newest = sorted(references.items(), key=lambda pair: pair[1], reverse=True)[:MAX_THREADS]
    try:
        for message, reference in newest:
            answers += _read_thread(channel, message, reference, list(_list_rows(client, table.channel, reference)))
    except (SlackClientError, OSError, ValueError) as error:
        raise Undelivered(f"answers of {channel}: " + mask(str(error), [token])) from None
    return answers


def _list_rows(client: WebClient, place: str, reference: str) -> Iterator[dict[str, Any]]:
    """Yield the messages of a thread, page by page; none of a deleted one."""
    cursor = ""
    for _ in range(MAX_PAGES):
        try:
            page = client.conversations_replies(channel=place, ts=reference, limit=PAGE, cursor=cursor or None)
        except SlackApiError as error:
            if error.response.get("error") in _TABLE["slack"]["deleted"]:
                return
            raise
        yield from list_objects(page.get("messages"))
        [more] = list_objects([page.get("response_metadata")]) or [{}]
        cursor = str(more.get("next_cursor") or "")
        if not cursor:
            return


def _read_thread(channel: str, message: str, reference: str, rows: Any) -> Iterator[RawAnswer]:
    for row in list_objects(rows):
        ts, user = str(row.get("ts", "")), str(row.get("user", ""))
        if ts == reference:
            yield from _read_reactions(channel, message, row)
        elif user and not row.get("bot_id") and str(row.get("subtype", "")) in _TABLE["slack"]["written_by_people"]:
            text = html.unescape(str(row.get("text", "")))
            yield RawAnswer(id=f"{reference}/{ts}", channel=channel, message=message, sender=user, text=text)


def _read_reactions(channel: str, message: str, row: Any) -> Iterator[RawAnswer]:
    for reaction in list_objects(row.get("reactions")):
        name = str(reaction.get("name", "")).partition("::")[0]  # without the skin tone
        if name not in REACTIONS:
            continue
        users = reaction.get("users")
        for user in users if isinstance(users, list) else ():
            id = f"{row.get('ts')}/{REACTIONS[name]}/{user}"
            yield RawAnswer(id=id, channel=channel, message=message, sender=str(user), text=REACTIONS[name])
