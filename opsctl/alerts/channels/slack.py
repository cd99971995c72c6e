"""Slack, by an incoming webhook or by a bot; a bot can reply in threads, and read the answers in them."""

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode

from opsctl.alerts.answer import RawAnswer, list_objects
from opsctl.alerts.channel_secrets import mask, reveal
from opsctl.alerts.channels.webhook import authorize, judge_status
from opsctl.alerts.message import Message
from opsctl.alerts.outbox import Undelivered
from opsctl.base.ports import Runner
from opsctl.base.tables import read_package_table
from opsctl.base.web import FAILURES, describe, fetch, open_session, parse_address
from opsctl.settings.alert_channels import SlackTable
from opsctl.state.files import parse_json

TIMEOUT_S, POLL_TIMEOUT_S = 15.0, 10.0
MAX_THREADS = 20
"""Threads that are read in one watch cycle, the newest first."""
PAGE, MAX_PAGES, MAX_ANSWER_BYTES = 200, 10, 16 << 20
"""Messages of a thread in one answer of Slack, the answers that are read of one thread in a cycle, and their size."""
_TABLE = read_package_table("alerts/answers.toml")
REACTIONS: dict[str, str] = _TABLE["reactions"]
MAX_BODY_CHARS = 3500
"""Slack splits longer messages."""
QUOTES = "'''"
ERROR_NAME = re.compile(r"[a-z_]+")
"""Form of Slack's error names; other text in their place is no answer of Slack."""


class Slack:
    def __init__(self, table: SlackTable, runner: Runner, *, timeout: float = TIMEOUT_S) -> None:  # noqa: ARG002 (every channel takes a runner)
        self._table, self._timeout = table, timeout
        self._webhook, self._token = reveal(table, "webhook"), reveal(table, "token")
        if self._webhook and not self._webhook.startswith(("https://", "http://")):
            raise Undelivered("webhook: must start with https://", is_permanent=True)

    def send(self, message: Message, *, reply_to: str = "") -> str:
        fields: dict[str, object] = {"text": _text(message)}
        if not self._token:
            answer = self._post(self._webhook, fields).decode(errors="replace")
            if answer.strip() != "ok":
                raise Undelivered(self._masked(f"answered {answer!r} instead of ok"), is_ambiguous=True)
            return ""
        fields |= {"channel": self._table.channel, "unfurl_links": False}
        if reply_to:  # replies also appear in the channel: people do not watch threads
            fields |= {"thread_ts": reply_to, "reply_broadcast": True}
        try:
            return str(read_answer(self._post(f"{self._table.api_url}chat.postMessage", fields))["ts"])
        except (ValueError, KeyError) as error:
            why = str(error)
            is_named = ERROR_NAME.fullmatch(why) is not None
            text, is_permanent = why if is_named else f"answered {why!r}", why in _TABLE["slack"]["permanent"]
            raise Undelivered(self._masked(text), is_permanent=is_permanent, is_ambiguous=not is_named) from None

    def _post(self, url: str, fields: Mapping[str, object]) -> bytes:
        """Return what Slack answers. Raises Undelivered."""
        try:
            headers = {"Content-Type": "application/json; charset=utf-8"} | authorize(self._token)
            data = json.dumps(fields).encode()
            address = parse_address(url)
            with fetch(open_session(), address, timeout=self._timeout, headers=headers, data=data) as response:
                answer = response.read(MAX_BODY_CHARS)
        except (*FAILURES, ValueError) as error:
            is_unsent = isinstance(error, URLError | ValueError)
            raise Undelivered(self._masked(describe(error)), is_ambiguous=not is_unsent) from None
        if response.status != 200:
            raise judge_status(response.status, response.headers, answer.decode(errors="replace"), self._masked)
        return answer

    def _masked(self, text: str) -> str:
        return "slack: " + mask(text, [self._webhook, self._token])


def read_answer(data: bytes) -> dict[str, Any]:
    """Return an answer of Slack's API. Raises ValueError for other data, and with Slack's name for a refusal."""
    answer = parse_json(data)
    if not isinstance(answer, dict) or answer.get("ok") is not True:
        raise ValueError(str(answer.get("error", answer) if isinstance(answer, dict) else answer)[:MAX_BODY_CHARS])
    return answer


def _text(message: Message) -> str:
    body = message.body if len(message.body) <= MAX_BODY_CHARS else message.body[:MAX_BODY_CHARS] + "\n…"
    # Three backticks would end the block, and <!channel> in a log line would notify the whole channel.
    body = body.replace("```", QUOTES)
    return f"*{_escaped(message.subject.replace('```', QUOTES))}*\n```\n{_escaped(body)}```"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def poll(channel: str, table: SlackTable, references: Mapping[str, str]) -> Iterator[RawAnswer]:
    """Yield the answers to the messages in `references`, by Slack's names for them.

    Raises Undelivered, also behind the last answer if more threads or messages are there than are read.
    """
    token, problem = reveal(table, "token"), ""
    newest = sorted(references.items(), key=lambda pair: pair[1], reverse=True)
    if len(newest) > MAX_THREADS:
        problem = f"of {len(newest)} threads, only the newest {MAX_THREADS} are read"
    try:
        for message, reference in newest[:MAX_THREADS]:
            try:
                yield from _read_thread(channel, message, reference, _list_rows(table, token, reference))
            except ValueError as error:  # of this thread alone
                problem = str(error)
    except FAILURES as error:
        problem = describe(error)
    if problem:
        raise Undelivered(f"answers of {channel}: " + mask(problem, [token]))


def _list_rows(table: SlackTable, token: str, reference: str) -> Iterator[dict[str, Any]]:
    """Yield the messages of a thread, page by page; none of a deleted one. Raises one of FAILURES, ValueError."""
    cursor = ""
    for _ in range(MAX_PAGES):
        query = urlencode({"channel": table.channel, "ts": reference, "limit": PAGE, "cursor": cursor})
        address = parse_address(f"{table.api_url}conversations.replies?{query}")
        with fetch(open_session(), address, timeout=POLL_TIMEOUT_S, headers=authorize(token)) as response:
            data = response.read(MAX_ANSWER_BYTES)
        try:
            page = read_answer(data)
        except ValueError as error:
            if str(error) in _TABLE["slack"]["deleted"]:
                return
            raise
        yield from list_objects(page.get("messages"))
        [more] = list_objects([page.get("response_metadata")]) or [{}]
        cursor = str(more.get("next_cursor") or "")
        if not cursor:
            return
    raise ValueError(f"a thread has more than {MAX_PAGES * PAGE} messages, of which the last are not read")


def _read_thread(channel: str, message: str, reference: str, rows: Iterable[dict[str, Any]]) -> Iterator[RawAnswer]:
    for row in rows:
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
