def main(*a): pass
