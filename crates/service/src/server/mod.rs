//! The server's half: who has a session, what arrives in it, and when to wake up.
