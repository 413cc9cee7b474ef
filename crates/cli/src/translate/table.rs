//! What a row of the table says.

/// A command of another tool.
#[derive(Debug)]
pub(crate) struct Tool {
    /// Its name on the page.
    pub(crate) name: &'static str,
    /// The words that its command line begins with; any of these.
    pub(crate) starts: &'static [&'static [&'static str]],
    /// What tare has for it.
    pub(crate) becomes: Becomes,
    /// Its flags.
    pub(crate) flags: &'static [Flag],
    /// Its arguments without a flag, in order.
    pub(crate) positional: &'static [Flag],
    /// Values that it has when nobody gives them, where tare has others: they are written out.
    pub(crate) defaults: &'static [(&'static str, &'static str)],
    /// What is not the same although the command is translated.
    pub(crate) differs: &'static [&'static str],
    /// A command line for the page and for the tests.
    pub(crate) example: &'static str,
}

/// What tare has for a whole command.
#[derive(Debug)]
pub(crate) enum Becomes {
    /// These words, and what its flags add.
    Tare(&'static [&'static str]),
    /// Nothing.
    Nothing(&'static str),
}

/// A flag of another tool.
#[derive(Debug)]
pub(crate) struct Flag {
    /// Its names; of an argument without a flag, the name that its help gives it.
    pub(crate) names: &'static [&'static str],
    /// Whether a value follows it.
    pub(crate) takes: Takes,
    /// What it means.
    pub(crate) meaning: &'static str,
    /// What tare has for it.
    pub(crate) to: To,
}

/// What follows a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// Nothing: it is a switch.
    Nothing,
    /// One value.
    Value,
}

/// What tare has for a flag.
#[derive(Debug)]
pub(crate) enum To {
    /// The same value under this flag.
    Same(&'static str),
    /// One more than the value: they count the tokens after the first.
    OneMore(&'static str),
    /// The value, but 1 for 0: tare has no prompt without a token.
    NotZero(&'static str),
    /// A list with ranges: one command for each value.
    Each(&'static To),
    /// A list with ranges under this flag, which takes lists.
    List(&'static str),
    /// Values that stand for something else than themselves, each with what tare does for it; the others as given.
    Unless(&'static [(&'static str, &'static str)], &'static To),
    /// The value as these words.
    One(&'static [(&'static str, &'static [&'static str])], &'static str),
    /// These words, without a value.
    Words(&'static [&'static str]),
    /// The file that the JSON goes to.
    JsonFile,
    /// `CHECKPOINT:PHASE:TOKENS`: a plan, a phase and its tokens.
    Case,
    /// The host of the address to measure.
    Host,
    /// The port of it.
    Port,
    /// tare does it in any case.
    Always(&'static str),
    /// tare has no counterpart.
    None(&'static str),
}

/// A flag with a value that tare has.
pub(crate) const fn value(names: &'static [&'static str], meaning: &'static str, to: To) -> Flag {
    Flag { names, takes: Takes::Value, meaning, to }
}

/// A switch.
pub(crate) const fn switch(names: &'static [&'static str], meaning: &'static str, to: To) -> Flag {
    Flag { names, takes: Takes::Nothing, meaning, to }
}
