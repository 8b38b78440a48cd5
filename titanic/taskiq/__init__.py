"""taskiq on Titanic.

TitanicBroker         for apps of taskiq; its results are the replies        titanic/taskiq/titanic_broker.py
TitanicResultBackend  how taskiq asks for them                               titanic/taskiq/result_backend.py
"""

from titanic.taskiq.result_backend import TitanicResultBackend as TitanicResultBackend
from titanic.taskiq.titanic_broker import TitanicBroker as TitanicBroker

__all__ = ["TitanicBroker", "TitanicResultBackend"]
