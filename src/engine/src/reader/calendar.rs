//! Calendars of the CF conventions, as cftime has them: dates and numbers of days.

/// A calendar. The first three count days from 1970-01-01 of the Gregorian calendar, the others from the first day of
/// their year 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Calendar {
    /// Julian until 1582-10-04, Gregorian from 1582-10-15 on.
    Standard,
    ProlepticGregorian,
    Julian,
    NoLeap,
    AllLeap,
    Days360,
}

/// The number of days before each month, from January to one past December.
const NO_LEAP: [i64; 13] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365];
const LEAP: [i64; 13] = [0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335, 366];

/// The first day of the Gregorian calendar, 1582-10-15, in days from 1970-01-01.
const GREGORIAN: i64 = -141_427;

impl Calendar {
    /// Returns the calendar with this name in cftime; `None` for other names.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "standard" | "gregorian" => Self::Standard,
            "proleptic_gregorian" => Self::ProlepticGregorian,
            "julian" => Self::Julian,
            "noleap" | "365_day" => Self::NoLeap,
            "all_leap" | "366_day" => Self::AllLeap,
            "360_day" => Self::Days360,
            _ => return None,
        })
    }

    /// Whether days of both calendars can be compared. Apart from the two Gregorian ones, a calendar is comparable only
    /// with itself: 1 January of a model's calendar is no day of another.
    pub fn counts_as(self, other: Self) -> bool {
        let is_gregorian = |calendar| matches!(calendar, Self::Standard | Self::ProlepticGregorian);
        self == other || (is_gregorian(self) && is_gregorian(other))
    }

    /// Returns the number of a day; `None` if the calendar has no such date.
    pub fn days(self, year: i64, month: i64, day: i64) -> Option<i64> {
        if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return None;
        }
        // cftime has no year 0 in these calendars.
        if year <= 0 && matches!(self, Self::Standard | Self::Julian) {
            return None;
        }
        let of_year = |days: &[i64; 13]| days[month as usize - 1] + day - 1;
        // Years are counted from March here, so a leap day is the last day of its year.
        let (from_march, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let leaps = from_march.div_euclid(4);
        let since = 365 * from_march + leaps + (153 * months + 2) / 5 + day - 1;
        let gregorian = since - from_march.div_euclid(100) + from_march.div_euclid(400) - 719_468;
        let julian = since - 719_470;
        let number = match self {
            Self::Standard if gregorian >= GREGORIAN => gregorian,
            Self::Standard | Self::Julian => julian,
            Self::ProlepticGregorian => gregorian,
            Self::NoLeap => 365 * year + of_year(&NO_LEAP),
            Self::AllLeap => 366 * year + of_year(&LEAP),
            Self::Days360 => 360 * year + 30 * (month - 1) + day - 1,
        };
        // The number of a day that its month doesn't have belongs to another date.
        (self.date(number) == (year, month, day)).then_some(number)
    }

    /// Returns the year, month and day of the day with this number.
    pub fn date(self, number: i64) -> (i64, i64, i64) {
        let of_year = |days: &[i64; 13]| {
            let (year, day) = (number.div_euclid(days[12]), number.rem_euclid(days[12]));
            let month = days.partition_point(|&before| before <= day);
            (year, month as i64, day - days[month - 1] + 1)
        };
        let from_march = |year: i64, day: i64| {
            let months = (5 * day + 2) / 153;
            let month = if months < 10 { months + 3 } else { months - 9 };
            (year + i64::from(month <= 2), month, day - (153 * months + 2) / 5 + 1)
        };
        match self {
            Self::Standard if number >= GREGORIAN => Self::ProlepticGregorian.date(number),
            Self::Standard | Self::Julian => {
                let days = number + 719_470;
                let year = (4 * days + 3).div_euclid(1461);
                from_march(year, days - (1461 * year).div_euclid(4))
            }
            Self::ProlepticGregorian => {
                let days = number + 719_468;
                let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
                let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
                from_march(era * 400 + year, day - (365 * year + year / 4 - year / 100))
            }
            Self::NoLeap => of_year(&NO_LEAP),
            Self::AllLeap => of_year(&LEAP),
            Self::Days360 => (number.div_euclid(360), number.rem_euclid(360) / 30 + 1, number.rem_euclid(30) + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_numbers_of_days_belong_together() {
        let all = [
            Calendar::Standard,
            Calendar::ProlepticGregorian,
            Calendar::Julian,
            Calendar::NoLeap,
            Calendar::AllLeap,
            Calendar::Days360,
        ];
        for calendar in all {
            let first = calendar.days(1200, 1, 1).unwrap();
            let mut before = (0, 0, 0);
            for number in first..first + 400_000 {
                let (year, month, day) = calendar.date(number);
                assert!((year, month, day) > before, "{calendar:?} {number}");
                assert_eq!(calendar.days(year, month, day), Some(number), "{calendar:?} {year}-{month}-{day}");
                before = (year, month, day);
            }
        }
        assert_eq!(Calendar::Standard.days(1970, 1, 1), Some(0));
    }
}
