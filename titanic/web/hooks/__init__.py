"""Webhooks: URLs that are notified when requests of a service end.

    web.hook        the registered hooks: one request for each, delayed for ten years (`registry.py`)
    web.ended       the server stores one request whenever a request of a service with hooks ends (`on_end`)
    web.delivery    one request for each hook and end: its worker POSTs the event (`delivery.py`)

All three are ordinary requests. Any gateway with hooks enabled delivers accepted events, with Titanic's retries, and
`titanic ls` lists them.
"""
