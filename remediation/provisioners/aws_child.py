"""One call to AWS, in a process of its own that ends: boto3 is loaded here and nowhere else.

JSON comes in on stdin and goes out on stdout. It makes only calls of the table. A call that acts is sent once, and
again only where AWS throttled it, and so did not apply it; a read may be sent up to three times. It must not decide
anything: the caller knows the meaning of an error for a node.
"""

from __future__ import annotations

import contextlib
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from healthd.remediation.provisioners.aws_calls import AwsCall, find_call
from healthd.remediation.provisioners.aws_errors import CallTrouble, trouble_of

TRIES = 3
_CONNECT_S = 3.0
_ERROR_CHARACTERS = 1_000


def main() -> int:
    """Make the one call that stdin names, and print the answer."""
    started_s = time.monotonic()
    gc.disable()  # one call, and the end: to look through AWS's service models again and again takes a third of its CPU
    question = json.load(sys.stdin)
    json.dump(answer(question, started_s + float(question["timeout_s"])), sys.stdout, default=str)
    return 0


def answer(question: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
    """``{"answer": …}``, or ``{"trouble": …, "code": …, "message": …}``. ``deadline_s``: monotonic, of all tries."""
    call = find_call(question["service"], question["operation"])
    if call is None:
        message = f"{question['service']}:{question['operation']} is not in healthd's table of calls; no call was made"
        return _trouble(CallTrouble.REFUSED, "NotInTable", message)
    if "DryRun" in question["parameters"] and not call.dry_run:
        return _trouble(CallTrouble.REFUSED, "NoDryRun", f"{call.action} has no dry run; no call was made")
    return _asked(call, question, deadline_s)


def _asked(call: AwsCall, question: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
    from botocore.exceptions import BotoCoreError, ClientError

    attempt = 1
    while True:
        try:
            return {"answer": _send(call, question, deadline_s - time.monotonic())}
        except ClientError as error:
            message = error.response["Error"]
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            kind, text = trouble_of(message["Code"], status), message.get("Message", "")
            if error.operation_name != call.operation:  # of STS, for the credentials: this call was not sent
                kind, text = CallTrouble.CREDENTIALS, f"{error.operation_name}: {text}"
            trouble = _trouble(kind, message["Code"], text)
        except BotoCoreError as error:
            return _trouble(_of_our_side(error), type(error).__name__, str(error))
        pause_s = random.uniform(0.1, 0.5 * 2**attempt)  # noqa: S311  spreads out tries, guards nothing
        again = call.acts and trouble["trouble"] == CallTrouble.THROTTLED and attempt < TRIES
        if not again or time.monotonic() + pause_s + _CONNECT_S > deadline_s:
            return trouble
        time.sleep(pause_s)
        attempt += 1


def _send(call: AwsCall, question: Mapping[str, Any], left_s: float) -> Any:
    import boto3
    from botocore import xform_name
    from botocore.config import Config

    tries = 1 if call.acts else TRIES
    settings: dict[str, Any] = {}
    if call.service == "s3" and question["endpoint_url"]:  # a store that is not AWS's knows no host for each bucket
        settings = {"s3": {"addressing_style": "path"}, "request_checksum_calculation": "when_required"}
    config = Config(
        **settings,
        retries={"mode": "standard", "total_max_attempts": tries},
        connect_timeout=_CONNECT_S,
        read_timeout=max(1.0, (left_s - 1.0) / tries - _CONNECT_S),
        user_agent_extra="healthd",
    )
    client = boto3.client(
        call.service,
        region_name=question["region"] or None,
        endpoint_url=question["endpoint_url"] or None,
        config=config,
    )
    name = xform_name(call.operation)
    if call.whole:
        pages = {"PageSize": call.page} if call.page else {}
        paginator = client.get_paginator(name)
        return paginator.paginate(**question["parameters"], PaginationConfig=pages).build_full_result()
    operation: Callable[..., dict[str, Any]] = getattr(client, name)
    with contextlib.ExitStack() as opened:
        parameters = dict(question["parameters"])
        if call.sends_file:
            parameters["Body"] = opened.enter_context(open(parameters["Body"], "rb"))
        answered = operation(**parameters)
    answered.pop("ResponseMetadata", None)
    return answered


def _of_our_side(error: Exception) -> CallTrouble:
    """The meaning of an error that botocore itself raised: whether the call was sent."""
    from botocore import exceptions as raised

    refused = (raised.ParamValidationError, raised.NoRegionError, raised.InvalidRegionError, raised.UnknownServiceError)
    credentials = (raised.NoCredentialsError, raised.PartialCredentialsError, raised.CredentialRetrievalError)
    unsent = (raised.EndpointConnectionError, raised.ConnectTimeoutError, raised.ProxyConnectionError)
    if isinstance(error, refused):
        return CallTrouble.REFUSED
    if isinstance(error, credentials):
        return CallTrouble.CREDENTIALS
    return CallTrouble.UNSENT if isinstance(error, unsent) else CallTrouble.UNKNOWN


def _trouble(trouble: CallTrouble, code: str, message: str) -> dict[str, Any]:
    return {"trouble": trouble, "code": code, "message": message[:_ERROR_CHARACTERS]}


if __name__ == "__main__":
    sys.exit(main())
