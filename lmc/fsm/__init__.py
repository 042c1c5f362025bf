"""Constraints as automata: regex ─► byte DFA ─► compressed ─► token automaton ─► forced tokens. No torch, and no numpy up to the byte DFA.

    regex.parse ─► dfa.build (minimise) ─► compress ─► draw                  what people look at
                            └─► tokens.TokenAutomaton(dfa, vocabulary) ─► forced.ForcedTokens(automaton, encode)
"""
