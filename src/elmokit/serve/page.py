"""The page."""
from fastapi import Response
def page_response(): return Response("<!DOCTYPE html>", media_type="text/html")
