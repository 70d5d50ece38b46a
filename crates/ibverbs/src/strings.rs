//! Names of enumeration values, and conversions of rates.
