from titanic.web.asgi import Gateway as Gateway
from titanic.web.settings import WebSettings as WebSettings
