//! What coordinates mean: instants of a calendar, durations, or other numbers. Knows the units and calendars of cftime
//! and udunits.

use super::calendar::Calendar;
use dali_zarr_base::dtype::DType;

/// Seconds of a day.
const DAY: f64 = 86400.0;

/// What the values of coordinates mean, by their attributes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Meaning {
    units: Option<String>,
    calendar: String,
    kind: TimeKind,
}

/// The kind of the values.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TimeKind {
    /// Instants: `origin + value * seconds` are the seconds since day 0 of the calendar.
    Instants { seconds: f64, origin: f64, calendar: Calendar },
    /// Durations of `value * seconds` seconds.
    Durations { seconds: f64 },
    /// Times that can't be converted: months, years, unknown calendars or references.
    Unconverted,
    /// Not times.
    Numbers,
}

/// How two series of coordinates are compared.
#[derive(Debug, PartialEq)]
pub(super) enum Comparison {
    /// By their numbers.
    Numbers,
    /// By their times in seconds, see [`Meaning::seconds`].
    Times,
    /// They can't be compared. Says what one and what the other is.
    Impossible(String, String),
}

impl Meaning {
    /// Finds what values with the attributes `units` and `calendar` mean. For datetime64 and timedelta64, `units` is
    /// the type.
    pub(super) fn new(units: Option<&str>, calendar: Option<&str>) -> Self {
        let units = units.map(str::trim).filter(|units| !units.is_empty());
        let calendar = calendar.unwrap_or("standard").trim().to_lowercase();
        let kind = units.map_or(TimeKind::Numbers, |units| kind(units, &calendar));
        Self { units: units.map(str::to_owned), calendar, kind }
    }

    /// Returns the units, as they are written.
    pub(super) fn units(&self) -> Option<&str> {
        self.units.as_deref()
    }

    /// Whether the values are instants or durations.
    pub(super) fn is_time(&self) -> bool {
        self.kind != TimeKind::Numbers
    }

    /// Returns how coordinates with this and another meaning are compared.
    pub(super) fn compared(&self, other: &Self) -> Comparison {
        use TimeKind::{Durations, Instants, Numbers};
        let is_plain = |one: &Self| one.units.is_none();
        match (self.kind, other.kind) {
            _ if self == other => Comparison::Numbers,
            (Numbers, Numbers) => Comparison::Numbers,
            // Numbers without units may be times.
            _ if is_plain(self) || is_plain(other) => Comparison::Numbers,
            (Instants { calendar: one, .. }, Instants { calendar: other, .. }) if one.counts_as(other) => {
                Comparison::Times
            }
            (Durations { .. }, Durations { .. }) => Comparison::Times,
            _ => Comparison::Impossible(self.text(), other.text()),
        }
    }

    /// Returns a value in seconds, or the value itself if it isn't a time.
    pub(super) fn seconds(&self, value: f64) -> f64 {
        match self.kind {
            TimeKind::Instants { seconds, origin, .. } => value.mul_add(seconds, origin),
            TimeKind::Durations { seconds } => value * seconds,
            TimeKind::Unconverted | TimeKind::Numbers => value,
        }
    }

    /// Returns the seconds of a date in ISO 8601, counted as by [`Self::seconds`]; `None` if the values aren't instants, or
    /// the text isn't a date.
    pub(super) fn date(&self, text: &str) -> Option<f64> {
        match self.kind {
            TimeKind::Instants { calendar, .. } => instant(text, calendar),
            TimeKind::Durations { .. } | TimeKind::Unconverted | TimeKind::Numbers => None,
        }
    }

    /// Returns the seconds by which a value of type `dtype` may be off because it was rounded.
    pub(super) fn rounding(&self, value: f64, dtype: DType) -> f64 {
        let seconds = match self.kind {
            TimeKind::Instants { seconds, .. } | TimeKind::Durations { seconds } => seconds,
            TimeKind::Unconverted | TimeKind::Numbers => return 0.0,
        };
        let relative = match dtype {
            DType::F16 => 2f64.powi(-11),
            DType::F32 => 2f64.powi(-24),
            _ => f64::EPSILON,
        };
        value.abs() * seconds * relative
    }

    /// Whether the value is NaT (not a time) of datetime64 or timedelta64.
    pub(super) fn is_nat(&self, value: f64) -> bool {
        let is_time = |units: &String| units.starts_with("datetime64[") || units.starts_with("timedelta64[");
        value == i64::MIN as f64 && self.units.as_ref().is_some_and(is_time)
    }

    /// Formats a value for messages: an instant as a date.
    pub(super) fn shown(&self, value: f64) -> String {
        let TimeKind::Instants { calendar, .. } = self.kind else { return value.to_string() };
        let seconds = (self.seconds(value) * 1e3).round() / 1e3;
        let day = (seconds / DAY).floor();
        // No calendar is meant for more than some hundred thousand years.
        if day.is_nan() || day.abs() >= 1e8 {
            return value.to_string();
        }
        let (year, month, day_of_month) = calendar.date(day as i64);
        let milliseconds = ((seconds - day * DAY) * 1e3).round() as i64;
        let (clock, fraction) = (milliseconds / 1000, milliseconds % 1000);
        let fraction = if fraction == 0 { String::new() } else { format!(".{fraction:03}") };
        format!(
            "{year:04}-{month:02}-{day_of_month:02} {:02}:{:02}:{:02}{fraction}",
            clock / 3600,
            clock / 60 % 60,
            clock % 60
        )
    }

    /// Formats the attributes for messages.
    pub(super) fn text(&self) -> String {
        match &self.units {
            Some(units) if units.contains(" since ") => format!("\"{units}\" of the calendar \"{}\"", self.calendar),
            Some(units) => format!("\"{units}\""),
            None => "no units".into(),
        }
    }
}

fn kind(units: &str, calendar: &str) -> TimeKind {
    for (prefix, is_difference) in [("datetime64", false), ("timedelta64", true)] {
        let Some(unit) = units.strip_prefix(prefix) else { continue };
        return match numpy_seconds(unit) {
            Some(seconds) if is_difference => TimeKind::Durations { seconds },
            Some(seconds) => TimeKind::Instants { seconds, origin: 0.0, calendar: Calendar::ProlepticGregorian },
            None => TimeKind::Unconverted,
        };
    }
    let mut words = units.splitn(3, char::is_whitespace).map(str::trim);
    match (words.next(), words.next(), words.next()) {
        (Some(unit), Some(since), Some(reference)) if since.eq_ignore_ascii_case("since") => {
            let instants = || {
                let calendar = Calendar::named(calendar)?;
                Some(TimeKind::Instants { seconds: seconds(unit)?, origin: instant(reference, calendar)?, calendar })
            };
            instants().unwrap_or(TimeKind::Unconverted)
        }
        (Some(unit), None, None) => seconds(unit).map_or(TimeKind::Numbers, |seconds| TimeKind::Durations { seconds }),
        _ => TimeKind::Numbers,
    }
}

/// Returns the seconds of a unit of time, by its names in cftime; `None` for other units.
fn seconds(unit: &str) -> Option<f64> {
    Some(match &*unit.to_lowercase() {
        "week" | "weeks" => 7.0 * DAY,
        "d" | "day" | "days" => DAY,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3600.0,
        // A lone "m" is a metre.
        "min" | "mins" | "minute" | "minutes" => 60.0,
        "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
        "ms" | "msec" | "msecs" | "millisec" | "millisecs" | "millisecond" | "milliseconds" => 1e-3,
        "us" | "microsec" | "microsecs" | "microsecond" | "microseconds" => 1e-6,
        "ns" | "nsec" | "nsecs" | "nanosec" | "nanosecs" | "nanosecond" | "nanoseconds" => 1e-9,
        _ => return None,
    })
}

/// Returns the seconds of a NumPy unit such as `[ns]` or `[10s]`; `None` for months, years and no unit.
fn numpy_seconds(text: &str) -> Option<f64> {
    let text = text.strip_prefix('[')?.strip_suffix(']')?;
    let (scale, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let scale: f64 = if scale.is_empty() { 1.0 } else { scale.parse().ok()? };
    let seconds = match unit {
        "W" => 7.0 * DAY,
        "D" => DAY,
        "h" => 3600.0,
        "m" => 60.0,
        "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "ns" => 1e-9,
        "ps" => 1e-12,
        "fs" => 1e-15,
        "as" => 1e-18,
        _ => return None,
    };
    Some(scale * seconds)
}

/// Parses an instant such as `2000-01-01 12:00:00.5 +01:00`. Returns seconds as [`TimeKind::Instants`] counts them; `None`
/// if the text isn't an instant.
fn instant(text: &str, calendar: Calendar) -> Option<f64> {
    let (sign, unsigned) =
        text.strip_prefix('-').map_or((1, text.strip_prefix('+').unwrap_or(text)), |text| (-1, text));
    let (date, rest) = unsigned.split_once([' ', 'T', 't']).unwrap_or((unsigned, ""));
    let rest = rest.trim();
    let (clock, zone) = rest.split_at(rest.find(|c: char| !matches!(c, '0'..='9' | ':' | '.')).unwrap_or(rest.len()));
    let whole = |text: &str| (1..=6).contains(&text.len()).then(|| text.parse::<u32>().ok()).flatten().map(i64::from);
    let mut parts = date.split('-').map(whole);
    let (year, month, day) = (parts.next()??, parts.next().unwrap_or(Some(1))?, parts.next().unwrap_or(Some(1))?);
    if parts.next().is_some() {
        return None;
    }
    let days = calendar.days(sign * year, month, day)?;
    let mut parts = clock.split(':');
    let hours = parts.next().filter(|text| !text.is_empty()).map_or(Some(0), whole)?;
    let minutes = parts.next().map_or(Some(0), whole)?;
    let seconds: f64 = parts.next().map_or(Some(0.0), |text| text.parse().ok())?;
    if parts.next().is_some() || hours > 24 || minutes > 59 || seconds >= 61.0 {
        return None;
    }
    Some(days as f64 * DAY + (hours * 3600 + minutes * 60) as f64 + seconds - zone_seconds(zone.trim())?)
}

/// Returns by how many seconds the clocks of a time zone are ahead of UTC. Knows `Z`, `UTC`, `GMT`, `+1`, `+01:30` and
/// `-0130`.
fn zone_seconds(text: &str) -> Option<f64> {
    if text.is_empty() || ["Z", "UTC", "GMT"].iter().any(|name| text.eq_ignore_ascii_case(name)) {
        return Some(0.0);
    }
    let (sign, text) =
        text.strip_prefix('-').map(|text| (-1.0, text)).or(text.strip_prefix('+').map(|text| (1.0, text)))?;
    let (hours, minutes) = match text.split_once(':') {
        Some(both) => both,
        None if text.len() > 2 => text.split_at_checked(text.len() - 2)?,
        None => (text, "0"),
    };
    let (hours, minutes): (u8, u8) = (hours.parse().ok()?, minutes.parse().ok()?);
    (hours < 24 && minutes < 60).then(|| sign * (f64::from(hours) * 3600.0 + f64::from(minutes) * 60.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(units: &str, calendar: &str, value: f64) -> String {
        Meaning::new(Some(units), Some(calendar)).shown(value)
    }

    #[test]
    fn times_are_dates_of_their_calendar() {
        // The expected texts are those of cftime 1.6 and NumPy.
        for (units, calendar, value, expected) in [
            ("hours since 1970-01-02", "standard", 1.5, "1970-01-02 01:30:00"),
            ("Hours since 2000-1-1", "gregorian", -1.0, "1999-12-31 23:00:00"),
            ("h since 2000-01-01 00:00:00.0", "standard", 0.0, "2000-01-01 00:00:00"),
            ("msec since 2000-01-01", "standard", 1.0, "2000-01-01 00:00:00.001"),
            ("secs since 2000-01-01T00:00:00+01:00", "standard", 0.0, "1999-12-31 23:00:00"),
            ("secs since 2000-01-01 06:00 -0530", "standard", 0.0, "2000-01-01 11:30:00"),
            ("days since 2000-03-01T12:30:05Z", "standard", 0.0, "2000-03-01 12:30:05"),
            ("days since 1582-10-04", "standard", 1.0, "1582-10-15 00:00:00"),
            ("days since 1582-10-04", "proleptic_gregorian", 1.0, "1582-10-05 00:00:00"),
            ("days since 1500-02-28", "julian", 1.0, "1500-02-29 00:00:00"),
            ("days since 2000-02-28", "julian", 2.0, "2000-03-01 00:00:00"),
            ("days since 0001-01-01", "standard", 730_121.0, "2000-01-01 00:00:00"),
            ("days since 0001-01-01", "proleptic_gregorian", 730_119.0, "2000-01-01 00:00:00"),
            ("days since 2000-02-28", "noleap", 1.0, "2000-03-01 00:00:00"),
            ("days since 2001-02-28", "366_day", 1.0, "2001-02-29 00:00:00"),
            ("days since 2000-02-28", "360_day", 3.0, "2000-03-01 00:00:00"),
            ("datetime64[10s]", "standard", 6.0, "1970-01-01 00:01:00"),
            ("datetime64[D]", "standard", 19_000.0, "2022-01-08 00:00:00"),
            // Values that aren't converted.
            ("months since 2000-01-01", "standard", 2.0, "2"),
            ("hours", "standard", 2.0, "2"),
            ("days since 2001-02-29", "noleap", 2.0, "2"),
            ("days since yesterday", "standard", 2.0, "2"),
            ("days since 2000-01-01 25:00", "standard", 2.0, "2"),
            ("days since 2000-01-01 1:0 nowhere", "standard", 2.0, "2"),
            ("days since 2000-01-01", "martian", 2.0, "2"),
            ("days since 2000-01-01", "standard", 1e10, "10000000000"),
        ] {
            assert_eq!(shown(units, calendar, value), expected, "{units}, {calendar}");
        }
    }

    #[test]
    fn what_is_compared() {
        use Comparison::{Numbers, Times};
        let of = |(units, calendar): (&str, Option<&str>)| Meaning::new(Some(units), calendar);
        let hours = ("hours since 2000-01-01", None);
        for (one, other, expected) in [
            (hours, hours, Some(Numbers)),
            (hours, ("days since 2000-01-01", Some("proleptic_gregorian")), Some(Times)),
            (hours, ("datetime64[ns]", None), Some(Times)),
            (hours, ("", None), Some(Numbers)),
            (("months since 2000-01-01", None), ("months since 2000-01-01", Some("standard")), Some(Numbers)),
            (("hours", None), ("timedelta64[ns]", None), Some(Times)),
            (("degrees_north", None), ("degreesN", None), Some(Numbers)),
            (hours, ("hours since 2000-01-01", Some("noleap")), None),
            (hours, ("hours since 2000-01-01", Some("julian")), None),
            (hours, ("months since 2000-01-01", None), None),
            (("years since 2000-01-01", None), ("months since 2000-01-01", None), None),
            (hours, ("hours", None), None),
            (hours, ("K", None), None),
        ] {
            let found = of(one).compared(&of(other));
            assert_eq!(found, of(other).compared(&of(one)).flipped(), "{one:?} {other:?}");
            assert_eq!(
                Some(found).filter(|found| !matches!(found, Comparison::Impossible(..))),
                expected,
                "{one:?} {other:?}"
            );
        }
    }

    impl Comparison {
        fn flipped(self) -> Self {
            match self {
                Self::Impossible(one, other) => Self::Impossible(other, one),
                same => same,
            }
        }
    }
}
