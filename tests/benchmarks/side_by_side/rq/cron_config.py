from cron import report
from rq.cron import register

register(report, "default", cron="* * * * *")
