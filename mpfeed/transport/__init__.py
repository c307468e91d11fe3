"""How bytes travel between two processes; knows neither feeds nor workers."""
