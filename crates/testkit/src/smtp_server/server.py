"""A real SMTP server (aiosmtpd) that misbehaves as it is told, and writes down what it was sent.

Arguments: a folder, and a port (0 for any). In the folder, `script.json` says how to behave; it is read again before every command, so that it can be
replaced while the server runs. Connections, commands and mails go to `journal.jsonl`, one JSON object a line, each
written before it is answered. The port is printed on the first line of standard output. It ends when its standard
input does: with whoever started it.

The script, every key optional:

  rules       a list; the first that fits is followed:
      at          greeting, ehlo, starttls, auth, mail, rcpt, data, body (after the mail's first line), end (after the
                  final dot), rset
      has         a text that the command must contain, such as an address
      times       how often it fits; always, if nothing is said
      reply       sent instead of the usual one, as Latin-1; may have several lines
      do          cut (the connection is reset), close (after the reply, if there is one), hang (nothing more is said),
                  leave (at `end`: takes the mail, and a moment later says the reply and closes)
  offers      further lines of the reply to EHLO, such as PIPELINING
  utf8        whether SMTPUTF8 is offered
  tls         starttls, required or implicit; with `certificate` and `key`
  login       [user, password]; `mechanisms` and `login_in_clear` say how and where it is taken
"""

import asyncio
import base64
import json
import logging
import os
import ssl
import sys
import threading

from aiosmtpd.smtp import SMTP, AuthResult

FOLDER = sys.argv[1]


class Script:
    def __init__(self):
        self.text = None
        self.read()

    def read(self):
        with open(os.path.join(FOLDER, "script.json"), encoding="utf-8") as file:
            text = file.read()
        if text != self.text:
            self.text, self.content = text, json.loads(text)
        return self.content

    def rule(self, at, command):
        for rule in self.read().get("rules", []):
            if rule["at"] != at or rule.get("has", "") not in command or rule.get("times", 1) <= 0:
                continue
            if "times" in rule:
                rule["times"] -= 1
            return rule
        return None


class Journal:
    def __init__(self):
        self.file = open(os.path.join(FOLDER, "journal.jsonl"), "a", encoding="utf-8")

    def write(self, **entry):
        self.file.write(json.dumps(entry) + "\n")
        self.file.flush()


class Handler:
    def __init__(self, script, journal):
        self.script, self.journal = script, journal

    async def handle_EHLO(self, server, session, envelope, hostname, responses):
        session.host_name = hostname
        offers = [f"250-{offer}" for offer in self.script.read().get("offers", [])]
        return responses[:-1] + offers + responses[-1:]

    async def handle_DATA(self, server, session, envelope):
        rule = self.script.rule("end", "")
        is_taken = rule is None or rule.get("do") == "leave" or rule.get("reply", "2").startswith("2")
        if is_taken:
            self.journal.write(
                mail={
                    "sender": envelope.mail_from,
                    "options": envelope.mail_options,
                    "recipients": envelope.rcpt_tos,
                    "data": base64.b64encode(envelope.original_content).decode(),
                }
            )
        if rule is not None and rule.get("do") == "leave":
            server.loop.call_later(0.05, server.leave, rule["reply"].encode("latin-1"))
            rule = None
        if rule is None:
            return "250 2.0.0 taken"
        server.is_to_close = rule.get("do") == "close"
        if rule.get("do") in ("cut", "hang"):
            await server.follow(rule)
        return rule.get("reply", "250 2.0.0 taken").encode("latin-1")


class Server(SMTP):
    """Asks the script before every command."""

    is_to_close = False

    async def follow(self, rule):
        if "reply" in rule:
            await self.push(rule["reply"].encode("latin-1"))
        if rule.get("do") == "cut":
            # For an encrypted connection it is the one below that must go.
            (self._original_transport or self.transport).abort()
        if rule.get("do") == "hang":
            self._timeout_handle.cancel()
            await asyncio.Event().wait()
        if rule.get("do") == "close" or rule.get("reply", "").startswith("421"):
            self.transport.close()

    def leave(self, reply):
        self._writer.write(reply + b"\r\n")
        self.transport.close()
        self.event_handler.journal.write(command="LEFT")

    async def is_scripted(self, at, arg):
        command = f"{at.upper()} {arg or ''}"
        self.event_handler.journal.write(command=command.strip())
        rule = self.event_handler.script.rule(at, command)
        if rule is not None:
            await self.follow(rule)
        return rule is not None

    async def _handle_client(self):
        self.event_handler.journal.write(connection=self.session.peer[1])
        rule = self.event_handler.script.rule("greeting", "")
        if rule is None:
            return await super()._handle_client()
        await self.follow(rule)
        # A real server that is busy closes; one that refuses for good waits for QUIT, which is of no interest here.
        self.transport.close()

    async def smtp_DATA(self, arg):
        if await self.is_scripted("data", arg):
            return
        rule = self.event_handler.script.rule("body", "")
        if rule is not None:
            await self.push("354 go on")
            await self._reader.readuntil(b"\n")
            return await self.follow(rule)
        await super().smtp_DATA(arg)
        if self.is_to_close:
            self.transport.close()


def scripted(verb):
    usual = getattr(SMTP, f"smtp_{verb}")

    async def command(self, arg):
        if not await self.is_scripted(verb.lower(), arg):
            await usual(self, arg)

    return command


for name in ("EHLO", "STARTTLS", "AUTH", "MAIL", "RCPT", "RSET"):
    setattr(Server, f"smtp_{name}", scripted(name))


def settings(script):
    wanted = script.read()
    chosen = {"enable_SMTPUTF8": wanted.get("utf8", False), "hostname": "scripted.test", "timeout": 3600}
    if "login" in wanted:
        login = [word.encode() for word in wanted["login"]]
        mechanisms = wanted.get("mechanisms", ["PLAIN", "LOGIN"])
        chosen["auth_required"] = True
        chosen["auth_require_tls"] = not wanted.get("login_in_clear", False)
        chosen["auth_exclude_mechanism"] = [name for name in ("PLAIN", "LOGIN") if name not in mechanisms]
        chosen["authenticator"] = lambda server, session, envelope, mechanism, given: AuthResult(
            success=[given.login, given.password] == login, handled=False
        )
    return chosen


async def serve():
    script, journal = Script(), Journal()
    wanted, chosen = script.read(), settings(script)
    handler, implicit = Handler(script, journal), None
    if "tls" in wanted:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(wanted["certificate"], wanted["key"])
        if wanted["tls"] == "implicit":
            implicit, chosen["auth_require_tls"] = context, False
        else:
            chosen.update(tls_context=context, require_starttls=wanted["tls"] == "required")
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(
        lambda: Server(handler, loop=loop, **chosen), "127.0.0.1", int(sys.argv[2]), ssl=implicit, backlog=512
    )
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


def end_with_whoever_started_it():
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=end_with_whoever_started_it, daemon=True).start()
logging.disable(logging.CRITICAL)
asyncio.run(serve())
