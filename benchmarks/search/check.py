def check(): return {}
