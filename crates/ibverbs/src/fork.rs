//! Forked children: the devices of the parent are inert there, and new ones can be opened.
