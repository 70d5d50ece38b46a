//! Asynchronous events of devices and their objects.
