"""The receivers that are configured: ``[notify]``."""

from __future__ import annotations

from healthd.config.schema.notify import NotifySection, receiver_of
from healthd.notify.delivery import NotDeliveredError, Receiver, secret_of, to_command, to_webhook
from healthd.notify.slack import to_slack, to_slack_bot


def channels_of(config: NotifySection, state_dir: str) -> dict[str, Receiver]:
    """The receivers by name; none by default. ``state_dir``: the daemon's."""
    found: dict[str, Receiver] = {}
    if config.slack_url_file:
        found["slack"] = Receiver(deliver=to_slack(config.slack_url_file))
    if config.slack_token_file:
        bot = to_slack_bot(config.slack_token_file, config.slack_channel, config.slack_api)
        found["slack-bot"] = Receiver(deliver=bot, each_incident=True, steps=True)
    if config.pagerduty_key_file:
        from healthd.notify.pagerduty import to_pagerduty

        pagerduty = to_pagerduty(config.pagerduty_key_file, config.pagerduty_url)
        found["pagerduty"] = Receiver(deliver=pagerduty, each_incident=True, steps=True)
    if config.webhook_url or config.webhook_url_file:
        webhook = to_webhook(config.webhook_url, config.webhook_token_file, url_file=config.webhook_url_file)
        found["webhook"] = Receiver(deliver=webhook, each_incident=True, steps=True)
    if config.command:
        found["command"] = Receiver(deliver=to_command(config.command))
    if config.eventbridge_bus:
        from healthd.notify.eventbridge import to_eventbridge

        events = to_eventbridge(config.eventbridge_bus)
        found["eventbridge"] = Receiver(deliver=events, each_incident=True, steps=True, service=True)
    for path in config.apprise_url_files:
        found[receiver_of(path)] = _by_apprise(path, state_dir)
    return found


def _by_apprise(path: str, state_dir: str) -> Receiver:
    from healthd.notify.apprise_services import keeps_incidents, to_apprise

    try:
        keeps = keeps_incidents(secret_of(path))
    except NotDeliveredError:  # said with the first message
        keeps = False
    return Receiver(deliver=to_apprise(path, state_dir), each_incident=keeps, steps=keeps)
