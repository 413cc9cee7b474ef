//! Reading a JSON object field by field, so that nothing in it is ignored.

use std::ops::RangeInclusive;
use tare_core::Fault;
use tare_text::Json;

use crate::problem::Problem;

/// Characters of a value that an error repeats.
const SHOWN: usize = 40;

/// An object whose fields are taken one by one. `null` is as good as absent; what is never taken is refused by
/// [`Fields::finish`].
#[derive(Debug)]
pub(crate) struct Fields {
    at: String,
    left: Vec<(String, Json)>,
}

impl Fields {
    /// The object at `at`, a path such as `messages[0]`; empty for the body itself.
    pub(crate) fn new(at: impl Into<String>, value: Json) -> Result<Self, Problem> {
        let at = at.into();
        match value {
            Json::Object(left) => Ok(Self { at, left }),
            other => Err(mismatch(if at.is_empty() { "body" } else { &at }, "an object", &other)),
        }
    }

    /// The path of a field.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    /// Any value.
    pub(crate) fn take(&mut self, name: &str) -> Option<Json> {
        let at = self.left.iter().position(|(key, _)| key == name)?;
        Some(self.left.remove(at).1).filter(|value| *value != Json::Null)
    }

    /// A value that must be there.
    pub(crate) fn required<T>(&self, name: &str, expected: &str, value: Option<T>) -> Result<T, Problem> {
        value.ok_or_else(|| Problem::parameter(Fault::new(self.path(name), expected, "nothing")))
    }

    /// A string.
    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, Problem> {
        self.read(name, "a string", |value| match value {
            Json::String(s) => Ok(s),
            other => Err(other),
        })
    }

    /// `true` or `false`.
    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        self.read(name, "true or false", |value| match value {
            Json::Bool(b) => Ok(b),
            other => Err(other),
        })
    }

    /// A list.
    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<Json>>, Problem> {
        self.read(name, "a list", |value| match value {
            Json::Array(items) => Ok(items),
            other => Err(other),
        })
    }

    /// An object, to be read in its turn.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Fields>, Problem> {
        let at = self.path(name);
        self.take(name).map(|value| Fields::new(at, value)).transpose()
    }

    /// A whole number.
    pub(crate) fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, Problem> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        self.read(name, &expected, |value| match &value {
            Json::Number(n) => n.as_i64().filter(|n| range.contains(n)).ok_or(value),
            _ => Err(value),
        })
    }

    /// A number, in range also once it is an F32: the engine must not see a bound crossed by rounding.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, Problem> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.read(name, &expected, |value| as_f32(&value).filter(|x| range.contains(x)).ok_or(value))
    }

    /// Fields of the API that are refused, with any value but null.
    pub(crate) fn refuse(&mut self, names: &[&str]) -> Result<(), Problem> {
        names.iter().try_for_each(|name| match self.take(name) {
            Some(value) => Err(Problem::not_built(self.path(name), "nothing", shown(&value))),
            None => Ok(()),
        })
    }

    /// A string of which one of a few values can be honoured.
    pub(crate) fn one_of(&mut self, name: &str, values: &[&str]) -> Result<(), Problem> {
        match self.take(name) {
            Some(value) if !value.as_str().is_some_and(|s| values.contains(&s)) => {
                let expected = values.iter().map(|v| format!("{v:?}")).collect::<Vec<_>>().join(" or ");
                Err(Problem::not_built(self.path(name), &expected, shown(&value)))
            }
            _ => Ok(()),
        }
    }

    /// Everything that was not taken, where any name is fine.
    pub(crate) fn rest(self) -> Vec<(String, Json)> {
        self.left
    }

    /// Refuses what was not taken.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        match self.left.first() {
            Some((name, value)) => {
                let fault = Fault::new(self.path(name), "only fields that this server knows", shown(value));
                let remedy = "take the field out; docs/reference/http.md lists all that are known";
                Err(Problem::parameter(fault.remedy(remedy)))
            }
            None => Ok(()),
        }
    }

    fn read<T>(
        &mut self,
        name: &str,
        expected: &str,
        convert: impl FnOnce(Json) -> Result<T, Json>,
    ) -> Result<Option<T>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        convert(value).map(Some).map_err(|other| mismatch(&self.path(name), expected, &other))
    }
}

/// The F32 nearest to a JSON number.
pub(crate) fn as_f32(value: &Json) -> Option<f32> {
    match value {
        Json::Number(n) => n.as_f64().map(|x| x as f32),
        _ => None,
    }
}

/// A value of the wrong type or out of range.
pub(crate) fn mismatch(at: &str, expected: &str, found: &Json) -> Problem {
    Problem::parameter(Fault::new(at, expected, shown(found)))
}

/// A value as an error repeats it.
pub(crate) fn shown(value: &Json) -> String {
    match value {
        Json::Null => "null".to_owned(),
        Json::Bool(b) => b.to_string(),
        Json::Number(n) => n.to_string(),
        Json::String(s) if s.chars().count() <= SHOWN => format!("{s:?}"),
        Json::String(s) => format!("{:?}...", s.chars().take(SHOWN).collect::<String>()),
        Json::Array(items) => format!("a list of {}", items.len()),
        Json::Object(_) => "an object".to_owned(),
    }
}
