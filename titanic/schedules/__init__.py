"""Schedules: requests that are submitted again and again.

Schedule     what is submitted, and when: plain data                   titanic/schedules/schedule.py
Scheduler    submits what is due, beside any number of others          titanic/schedules/scheduler.py
"""

from titanic.schedules.schedule import Missed, Schedule
from titanic.schedules.scheduler import Scheduler

__all__ = ["Missed", "Schedule", "Scheduler"]
