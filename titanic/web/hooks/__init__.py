"""Web hooks: when a request of a service ends, a URL is told.

    web.hook        the hooks themselves: requests that are delayed for ten years, one for each (`registry.py`)
    web.ended       the server stores a request for it whenever one of a service with hooks ends (`on_end`)
    web.delivery    one request for each hook and end: POSTs it (`delivery.py`)

All three are ordinary requests: what is accepted is delivered, by any gateway that delivers hooks, with Titanic's own
retries, and `titanic ls` shows it.
"""
