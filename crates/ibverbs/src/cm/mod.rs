//! librdmacm: connections, over the connection manager of the safe verbs.
