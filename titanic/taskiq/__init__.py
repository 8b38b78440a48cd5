"""taskiq on Titanic.

TitanicBroker         for apps of taskiq; its results are the replies
TitanicResultBackend  how taskiq asks for them
"""

from titanic.taskiq.broker import TitanicBroker as TitanicBroker
from titanic.taskiq.broker import TitanicResultBackend as TitanicResultBackend

__all__ = ["TitanicBroker", "TitanicResultBackend"]
