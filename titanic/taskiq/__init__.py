"""taskiq on Titanic.

TitanicBroker         for apps of taskiq; its results are the replies        titanic/taskiq/titanic_broker.py
TitanicResultBackend  how taskiq asks for them                               titanic/taskiq/result_backend.py
"""

from titanic.taskiq.broker import TitanicBroker as TitanicBroker
from titanic.taskiq.broker import TitanicResultBackend as TitanicResultBackend

__all__ = ["TitanicBroker", "TitanicResultBackend"]
