//! What must hold inside a study.

use serde_json::{Value, json};
use tare_core::Fault;
use tare_evidence::study::{A_A, Design, Metric, UnderStudy};

use super::{ArmSpec, Study};
use crate::peers::tune;

/// The fields of an arm: what declares each, its name, its value.
type Field = (UnderStudy, &'static str, fn(&ArmSpec) -> Value);

/// Every field in which an arm may differ from the baseline.
const FIELDS: [Field; 9] = [
    (UnderStudy::Plan, "plan", |a| json!(a.plan)),
    (UnderStudy::Class, "class", |a| json!(a.class)),
    (UnderStudy::Threads, "threads", |a| json!(a.threads)),
    (UnderStudy::Settings, "keep_workers", |a| json!(a.keep_workers)),
    (UnderStudy::Isa, "isa", |a| json!(a.isa)),
    (UnderStudy::Build, "build", |a| json!(a.build)),
    (UnderStudy::Model, "model", |a| json!(a.model)),
    (UnderStudy::Peer, "peer", |a| json!(a.peer)),
    (UnderStudy::Delay, "delay", |a| json!(a.delay)),
];

impl Study {
    /// Everything that can be checked without a model or a process.
    pub(super) fn check(&self) -> Result<(), Fault> {
        self.check_texts()?;
        self.check_numbers()?;
        self.check_seed()?;
        self.check_rounds()?;
        self.check_arms()
    }

    fn check_texts(&self) -> Result<(), Fault> {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
        if self.name.is_empty() || self.name.starts_with('.') || !self.name.chars().all(allowed) {
            let expected = "a folder name: lower-case letters, digits, `.`, `_`, `-`, not hidden";
            return Err(Fault::new("name", expected, format!("`{}`", self.name)));
        }
        let texts = [
            ("question", &self.question),
            ("hypothesis", &self.hypothesis),
            ("falsifier", &self.falsifier),
            ("misleads", &self.misleads),
        ];
        match texts.iter().find(|(_, text)| text.trim().is_empty()) {
            Some((name, _)) => Err(Fault::new(*name, "a sentence", "nothing")),
            None => Ok(()),
        }
    }

    fn check_numbers(&self) -> Result<(), Fault> {
        let share = |at: &str, x: f64| {
            let fits = x > 0.0 && x < 1.0;
            if fits { Ok(()) } else { Err(Fault::new(at, "a number between 0 and 1", x.to_string())) }
        };
        share("alpha", self.alpha)?;
        for (at, x) in [("worthwhile", self.worthwhile), ("tolerance", self.tolerance)] {
            if !(0.0..1.0).contains(&x) {
                return Err(Fault::new(at, "a log-ratio from 0 to below 1", x.to_string()));
            }
        }
        let w = &self.work;
        if w.prompt_tokens == 0 || w.output_tokens < 2 {
            let found = format!("{} and {}", w.prompt_tokens, w.output_tokens);
            return Err(Fault::new("work", "at least 1 prompt token and 2 output tokens", found));
        }
        if w.sequences == 0 {
            return Err(Fault::new("work.sequences", "at least 1", "0"));
        }
        if let Some(head) = w.head_as.as_ref().filter(|_| w.written_as.is_none()) {
            return Err(Fault::new(
                "work.head_as",
                "none without `written_as`: no file is written",
                format!("`{head}`"),
            )
            .remedy("name the format of the other matrices in `written_as`"));
        }
        if self.turn_tokens < 2 {
            let expected = "at least 2: the first token of a turn is not timed";
            return Err(Fault::new("turn_tokens", expected, self.turn_tokens.to_string()));
        }
        if self.design == Design::Duet && self.metric == Metric::EndToEnd {
            return Err(Fault::new("metric", "prefill, decode or inter_token in a duet", "end_to_end")
                .remedy("a duet leaves tokens untimed, so that its requests have no whole: take `balanced`"));
        }
        if self.design == Design::Duet && w.output_tokens < 3 {
            let expected = "at least 3 in a duet: one is the prefill's, and the next begins a turn and is not timed";
            return Err(Fault::new("work.output_tokens", expected, w.output_tokens.to_string()));
        }
        if self.warmups > 0 && self.warmup_tokens == 0 {
            return Err(Fault::new("warmup_tokens", "at least 1", "0"));
        }
        Ok(())
    }

    fn check_rounds(&self) -> Result<(), Fault> {
        match (self.rounds, &self.power) {
            (Some(n), None) if n > 0 => {}
            (None, Some(p)) => {
                let fits = p.effect > 0.0 && p.effect < 1.0 && p.spread > 0.0 && p.spread < 1.0;
                if !fits || !(0.5..1.0).contains(&p.power) || p.from.trim().is_empty() {
                    let expected = "effect and spread between 0 and 1, power from 0.5 to below 1, and where the spread \
                                    was measured";
                    return Err(Fault::new("power", expected, format!("{p:?}")));
                }
            }
            (rounds, power) => {
                let found = format!("rounds {rounds:?} and power {power:?}");
                return Err(Fault::new("rounds", "rounds of at least 1, or [power], and not both", found));
            }
        }
        let balanced = self.design.balanced_rounds(self.timed().count() + 1).unwrap_or(usize::MAX);
        match self.rounds.filter(|n| !(*n as usize).is_multiple_of(balanced)) {
            Some(n) => {
                let expected = format!("a multiple of {balanced}, so that every order comes equally often");
                Err(Fault::new("rounds", expected, n.to_string()))
            }
            None => Ok(()),
        }
    }

    fn check_seed(&self) -> Result<(), Fault> {
        if self.work.seed == tune::SEED && self.arms.iter().any(|a| a.peer.is_some()) {
            let expected = format!("another than {}, which peers are tuned on", tune::SEED);
            return Err(Fault::new("work.seed", expected, self.work.seed.to_string()));
        }
        Ok(())
    }

    fn check_arms(&self) -> Result<(), Fault> {
        let Some((baseline, candidates)) = self.arms.split_first() else {
            return Err(Fault::new("arms", "at least one: the first is the baseline", "none"));
        };
        let mut labels: Vec<&str> = self.arms.iter().map(|a| a.label.as_str()).chain([A_A]).collect();
        labels.sort_unstable();
        if let Some(pair) = labels.windows(2).find(|w| w[0] == w[1]) {
            let remedy = format!("`{A_A}` is the baseline's second run, which every study has");
            return Err(Fault::new("arms.label", "one arm of each label", format!("two `{}`", pair[0])).remedy(remedy));
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if let Some(a) = self.arms.iter().find(|a| a.label.is_empty() || !a.label.chars().all(allowed)) {
            let found = format!("`{}`", a.label);
            return Err(Fault::new("arms.label", "letters, digits, `.`, `_`, `-`", found));
        }
        if baseline.ceiling.is_some() {
            return Err(Fault::new("arms", "a first arm that runs the work: it is the baseline", "one of a ceiling"));
        }
        for arm in candidates {
            if arm.backend() != baseline.backend() {
                let at = format!("arms.{}.backend", arm.label);
                let expected = format!("{}, as in `{}`", baseline.backend(), baseline.label);
                return Err(Fault::new(at, expected, arm.backend())
                    .remedy("a campaign samples the ceilings of one backend: name it in every arm"));
            }
            if arm.ceiling.is_some() {
                self.check_ceiling(arm)?;
                continue;
            }
            for (declares, name, of) in FIELDS.iter().filter(|f| !self.under_study.contains(&f.0)) {
                let (a, b) = (of(baseline), of(arm));
                if a != b {
                    let at = format!("arms.{}.{name}", arm.label);
                    return Err(Fault::new(at, format!("{a}, as in `{}`", baseline.label), b.to_string())
                        .remedy(format!("make them equal, or declare {} in under_study", json!(declares))));
                }
            }
        }
        let idle = |u: &&UnderStudy| {
            FIELDS.iter().filter(|f| f.0 == **u).all(|(_, _, of)| self.timed().all(|a| of(a) == of(baseline)))
        };
        match self.under_study.iter().find(idle) {
            Some(u) => Err(Fault::new("under_study", "what an arm differs in", json!(u).to_string())
                .remedy("take it out, or add the arm that differs in it")),
            None => Ok(()),
        }
    }
}

impl Study {
    /// A ceiling is that of the baseline's threads and backend: nothing else can be chosen, and each is measured once.
    fn check_ceiling(&self, arm: &ArmSpec) -> Result<(), Fault> {
        let at = |field: &str| format!("arms.{}.{field}", arm.label);
        let none = ArmSpec::default();
        if let Some((_, name, of)) = FIELDS.iter().find(|(.., of)| of(arm) != of(&none)) {
            return Err(Fault::new(at(name), "nothing in an arm of a ceiling", of(arm).to_string())
                .remedy("it has the threads and the backend of the baseline"));
        }
        match self.arms.iter().find(|a| a.label != arm.label && a.ceiling == arm.ceiling) {
            Some(other) => Err(Fault::new(at("ceiling"), "one arm of each kind", format!("`{}` too", other.label))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::CeilingKind;

    const BASE: &str = r#"
        name = "t"
        question = "q"
        hypothesis = "h"
        falsifier = "f"
        misleads = "m"
        under_study = ["plan"]
        design = "balanced"
        metric = "decode"
        rounds = 6
        role = "screening"
        [work]
        model = "synthetic:qwen3-tiny"
        prompt_tokens = 8
        output_tokens = 5
        [[arms]]
        label = "base"
        plan = "paged"
        [[arms]]
        label = "other"
        plan = "kv-cache"
    "#;

    fn refused(from: &str, to: &str) -> String {
        assert!(BASE.contains(from), "{from}");
        Study::parse(&BASE.replace(from, to)).unwrap_err().to_string()
    }

    #[test]
    fn a_study_is_read_with_its_defaults_and_its_a_a_arm() {
        let s = Study::parse(BASE).unwrap();
        assert_eq!((s.alpha, s.turn_tokens, s.warmups, s.warmup_output()), (0.05, 4, 1, 3));
        let labels: Vec<String> = s.cast().into_iter().map(|a| a.label).collect();
        assert_eq!(labels, ["base", "a-a", "other"]);
        assert_eq!(s.cast()[1].plan, s.cast()[0].plan);
        assert_eq!(s.digest().unwrap(), Study::parse(BASE).unwrap().digest().unwrap());
        assert_ne!(s.digest().unwrap(), Study::parse(&BASE.replace("= 8", "= 9")).unwrap().digest().unwrap());
    }

    #[test]
    fn one_sequence_is_the_default_and_changes_no_digest() {
        let with = |n: usize| {
            let text = BASE.replace("output_tokens = 5", &format!("output_tokens = 5\nsequences = {n}"));
            Study::parse(&text).unwrap()
        };
        let alone = Study::parse(BASE).unwrap();
        assert_eq!((alone.work.sequences, alone.plan().unwrap().work.sequences), (1, 1));
        assert_eq!(with(1).digest().unwrap(), alone.digest().unwrap());
        assert_ne!(with(8).digest().unwrap(), alone.digest().unwrap());
        assert_eq!(with(8).plan().unwrap().work.sequences, 8);
    }

    #[test]
    fn arms_that_differ_in_what_is_not_under_study_are_refused() {
        let said = refused("plan = \"kv-cache\"", "plan = \"kv-cache\"\nthreads = 1");
        assert!(said.contains("arms.other.threads") && said.contains("under_study"), "{said}");
        let said = refused("under_study = [\"plan\"]", "under_study = []");
        assert!(said.contains("arms.other.plan: expected \"paged\", as in `base`, found \"kv-cache\""), "{said}");
        let said = refused("plan = \"kv-cache\"", "plan = \"kv-cache\"\nbackend = \"cuda\"");
        assert!(said.contains("arms.other.backend: expected cpu, as in `base`, found cuda"), "{said}");
        let named = BASE.replace("plan = \"paged\"", "plan = \"paged\"\nbackend = \"cpu\"");
        assert!(Study::parse(&named).is_ok(), "the backend that is meant when none is named");
        let said = refused("[\"plan\"]", "[\"plan\", \"class\"]");
        assert!(said.contains("what an arm differs in, found \"class\""), "{said}");
    }

    #[test]
    fn keeping_workers_is_a_setting_that_a_study_may_vary() {
        let kept = BASE.replace("plan = \"kv-cache\"", "plan = \"paged\"\nkeep_workers = true");
        let said = Study::parse(&kept).unwrap_err().to_string();
        assert!(said.contains("arms.other.keep_workers: expected false, as in `base`, found true"), "{said}");
        assert!(said.contains("declare \"settings\" in under_study"), "{said}");
        let varied = Study::parse(&kept.replace("[\"plan\"]", "[\"settings\"]")).unwrap();
        let shown = varied.plan().unwrap().arms;
        assert_eq!((shown[0].what.get("keep_workers"), &shown[1].what["keep_workers"]), (None, &json!(true)));
        let said = BASE.replace("plan = \"kv-cache\"", "plan = \"kv-cache\"\nkeep_workers = false");
        let default = Study::parse(BASE).unwrap().digest().unwrap();
        assert_eq!(Study::parse(&said).unwrap().digest().unwrap(), default, "the default changes no digest");
    }

    #[test]
    fn what_is_unknown_missing_or_out_of_range_is_refused() {
        for (from, to, says) in [
            ("rounds = 6", "rounds = 6\nround = 1", "unknown field"),
            ("plan = \"kv-cache\"", "plna = \"kv-cache\"", "unknown field"),
            ("question = \"q\"", "", "question"),
            ("falsifier = \"f\"", "falsifier = \" \"", "falsifier: expected a sentence"),
            ("rounds = 6", "", "and not both"),
            ("rounds = 6", "rounds = 0", "and not both"),
            ("rounds = 6", "rounds = 6\nalpha = 1.0", "alpha"),
            ("rounds = 6", "rounds = 6\nturn_tokens = 1", "not timed"),
            ("output_tokens = 5", "output_tokens = 5\nhead_as = \"q6_k\"", "none without `written_as`"),
            ("output_tokens = 5", "output_tokens = 1", "2 output tokens"),
            ("output_tokens = 5", "output_tokens = 5\nsequences = 0", "work.sequences: expected at least 1"),
            ("label = \"other\"", "label = \"a-a\"", "two `a-a`"),
            ("label = \"other\"", "label = \"o t\"", "`o t`"),
            ("name = \"t\"", "name = \"T\"", "folder name"),
            ("\"balanced\"", "\"abba\"\nabba = 1", "unknown field"),
        ] {
            let said = refused(from, to);
            assert!(said.contains(says), "{to}: {said}");
        }
        let odd = refused(
            "design = \"balanced\"\n        metric = \"decode\"\n        rounds = 6",
            "design = \"abba\"\n        metric = \"decode\"\n        rounds = 7",
        );
        assert!(odd.contains("a multiple of 2, so that every order"), "{odd}");
        let some = BASE.replace("balanced", "permutations").replace("rounds = 6", "rounds = 8");
        assert!(Study::parse(&some).unwrap_err().to_string().contains("a multiple of 6, so that every order"));
        let short = BASE.replace("balanced", "duet").replace("output_tokens = 5", "output_tokens = 2");
        let short = Study::parse(&short).unwrap_err().to_string();
        assert!(short.contains("at least 3 in a duet"), "{short}");
        let whole = refused(
            "design = \"balanced\"\n        metric = \"decode\"",
            "design = \"duet\"\n        metric = \"end_to_end\"",
        );
        assert!(whole.contains("take `balanced`"), "{whole}");
    }

    #[test]
    fn the_request_that_peers_are_tuned_on_is_not_measured() {
        let seeded =
            |text: &str| text.replace("output_tokens = 5", &format!("output_tokens = 5\nseed = {}", tune::SEED));
        let peer =
            BASE.replace("plan = \"kv-cache\"", "peer = \"llama.cpp\"").replace("[\"plan\"]", "[\"plan\", \"peer\"]");
        let said = Study::parse(&seeded(&peer)).unwrap_err().to_string();
        assert!(said.contains("work.seed: expected another than 7919"), "{said}");
        assert!(Study::parse(&peer).is_ok() && Study::parse(&seeded(BASE)).is_ok(), "tare alone is not tuned");
    }

    #[test]
    fn an_arm_of_a_ceiling_is_in_no_pair_and_chooses_nothing() {
        let with = |more: &str| Study::parse(&format!("{BASE}\n[[arms]]\nlabel = \"top\"\n{more}\n"));
        let s = with("ceiling = \"read\"").unwrap();
        let labels: Vec<String> = s.cast().into_iter().map(|a| a.label).collect();
        assert_eq!(labels, ["base", "a-a", "other"]);
        assert_eq!(s.ceilings().collect::<Vec<_>>(), [("top", CeilingKind::Read)]);
        let plan = s.plan().unwrap();
        assert_eq!(plan.labels(), ["base", "a-a", "other"]);
        assert_eq!(plan.ceilings().map(|a| a.label.as_str()).collect::<Vec<_>>(), ["top"]);
        assert!(plan.faults().is_empty() && !plan.order(1).unwrap().contains(&"top".to_string()));
        for (more, says) in [
            ("ceiling = \"write\"", "unknown variant"),
            ("ceiling = \"read\"\nthreads = 1", "arms.top.threads: expected nothing in an arm of a ceiling"),
            ("ceiling = \"read\"\nbackend = \"cuda\"", "arms.top.backend"),
            ("ceiling = \"read\"\n[[arms]]\nlabel = \"again\"\nceiling = \"read\"", "one arm of each kind"),
        ] {
            let said = with(more).unwrap_err().to_string();
            assert!(said.contains(says), "{more}: {said}");
        }
        let first = BASE.replace("label = \"base\"\n        plan = \"paged\"", "label = \"base\"\nceiling = \"read\"");
        assert!(Study::parse(&first).unwrap_err().to_string().contains("a first arm that runs the work"));
        let alone = BASE.split("[[arms]]\n        label = \"other\"").next().unwrap().replace("[\"plan\"]", "[]");
        let alone = Study::parse(&format!("{alone}\n[[arms]]\nlabel = \"top\"\nceiling = \"tiles\"\n")).unwrap();
        assert!(alone.plan().unwrap().faults().is_empty(), "the baseline, its twin and a ceiling");
    }

    #[test]
    fn rounds_follow_from_what_they_must_find() {
        let planned = |design: &str, effect: f64| {
            let power = format!("[power]\neffect = {effect}\npower = 0.9\nspread = 0.02\nfrom = \"an id\"\n[work]");
            let text = BASE.replace("rounds = 6", "").replace("[work]", &power).replace("balanced", design);
            Study::parse(&text).unwrap().planned_rounds().unwrap()
        };
        assert!(planned("balanced", 0.03) > planned("balanced", 0.06));
        assert!(planned("abba", 0.06) >= 2 * planned("balanced", 0.06) - 2, "two rounds of abba are one sample");
        assert!(planned("balanced", 0.03).is_multiple_of(2), "every order comes equally often");
        let said = refused("rounds = 6", "power = { effect = 0.03, power = 0.2, spread = 0.02, from = \"x\" }");
        assert!(said.contains("power from 0.5"), "{said}");
    }

    #[test]
    fn every_shipped_study_is_valid_and_is_called_as_its_file() {
        for name in Study::names() {
            let s = Study::find(name).unwrap();
            assert_eq!(s.name, name);
            let plan = s.plan().unwrap();
            assert!(plan.rounds as usize >= plan.deciding_rounds().unwrap(), "{name}: its rounds can tell nothing");
        }
        assert!(Study::find("nothing").unwrap_err().to_string().contains("aa-duet"));
    }
}
