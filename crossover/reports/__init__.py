"""What a run was, for people: its folder, tables for the terminal, pages, and several runs side by side.

Every figure comes from records and `costs/`; nothing here starts, follows or prices a run.
"""
