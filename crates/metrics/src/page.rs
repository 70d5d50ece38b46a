//! A page of metrics, as `prometheus-client` writes it.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// The base units of Prometheus' conventions. A family's name ends in its unit, which is written behind the name that is
/// given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Seconds, never milliseconds.
    Seconds,
    /// Bytes, never kilobytes.
    Bytes,
}

/// What a family's value is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Number {
    /// A whole number.
    Count(u64),
    /// A number that may have a fraction.
    Amount(f64),
}

impl From<u64> for Number {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<usize> for Number {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<f64> for Number {
    fn from(amount: f64) -> Self {
        Self::Amount(amount)
    }
}

/// Writes families onto a page, at every scrape.
pub type Source = Arc<dyn Fn(&mut Page<'_>) -> fmt::Result + Send + Sync>;

/// What a source writes onto.
#[derive(Debug)]
pub struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Page<'_> {
    /// A number that only grows. Its name gets its unit and `_total` behind it.
    ///
    /// # Errors
    /// There is no more room for text.
    pub fn counter(
        &mut self,
        name: &str,
        unit: Option<Unit>,
        help: &str,
        value: impl Into<Number>,
    ) -> fmt::Result {
        let unit = unit.map(Into::into);
        let metric = self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        match value.into() {
            Number::Count(count) => ConstCounter::new(count).encode(metric),
            Number::Amount(amount) => ConstCounter::new(amount).encode(metric),
        }
    }

    /// A number that goes up and down. Its name gets its unit behind it.
    ///
    /// # Errors
    /// There is no more room for text.
    pub fn gauge(
        &mut self,
        name: &str,
        unit: Option<Unit>,
        help: &str,
        value: impl Into<Number>,
    ) -> fmt::Result {
        let unit = unit.map(Into::into);
        let metric = self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        match value.into() {
            Number::Count(count) => ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX)).encode(metric),
            Number::Amount(amount) => ConstGauge::new(amount).encode(metric),
        }
    }

    /// Counters that differ in one label. Label values may hold anything.
    ///
    /// # Errors
    /// There is no more room for text.
    pub fn counters<T: Into<Number>, S: AsRef<str>>(
        &mut self,
        name: &str,
        unit: Option<Unit>,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (S, T)>,
    ) -> fmt::Result {
        let unit = unit.map(Into::into);
        let mut metric = self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (text, value) in values {
            let labels = [(label, text.as_ref())];
            let one = metric.encode_family(&labels)?;
            match value.into() {
                Number::Count(count) => ConstCounter::new(count).encode(one)?,
                Number::Amount(amount) => ConstCounter::new(amount).encode(one)?,
            }
        }
        Ok(())
    }

    /// A family whose value is always 1, and whose labels say what there is to say.
    ///
    /// # Errors
    /// There is no more room for text.
    pub fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Info)?;
        metric.encode_info(&labels)
    }
}

impl From<Unit> for prometheus_client::registry::Unit {
    fn from(unit: Unit) -> Self {
        match unit {
            Unit::Seconds => Self::Seconds,
            Unit::Bytes => Self::Bytes,
        }
    }
}

struct Sources(Vec<Source>);

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sources").field(&self.0.len()).finish()
    }
}

impl Collector for Sources {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page { encoder };
        self.0.iter().try_for_each(|source| source(&mut page))
    }
}

/// The text of these sources, as a scrape gets it.
#[must_use]
pub fn render(sources: Vec<Source>) -> String {
    Pages::new(sources).text()
}

/// Sources that are asked again and again.
pub(crate) struct Pages(Registry);

impl Pages {
    pub(crate) fn new(sources: Vec<Source>) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Sources(sources)));
        Self(registry)
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail, and a source that did would leave the page without its end, which a scraper
        // notices.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.0);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_units_and_labels_are_as_openmetrics_wants_them() {
        let source: Source = Arc::new(|page| {
            page.counter("a", None, "Things.", 3_u64)?;
            page.counter("b", Some(Unit::Seconds), "Time.", 0.25)?;
            page.gauge("c", Some(Unit::Bytes), "Room.", u64::MAX)?;
            page.info("d", "What it is.", &[("mode", "durable")])?;
            page.counters("e", None, "By code.", "code", [("A\"\\\n", 1_u64), ("B", 2)])
        });
        assert_eq!(
            render(vec![source]),
            "# HELP a Things.\n# TYPE a counter\na_total 3\n\
             # HELP b_seconds Time.\n# TYPE b_seconds counter\n# UNIT b_seconds seconds\nb_seconds_total 0.25\n\
             # HELP c_bytes Room.\n# TYPE c_bytes gauge\n# UNIT c_bytes bytes\nc_bytes 9223372036854775807\n\
             # HELP d What it is.\n# TYPE d info\nd_info{mode=\"durable\"} 1\n\
             # HELP e By code.\n# TYPE e counter\ne_total{code=\"A\\\"\\\\\\n\"} 1\ne_total{code=\"B\"} 2\n# EOF\n"
        );
    }
}
