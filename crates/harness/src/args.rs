//! The user's arguments for a harness, taken apart as far as a driver must understand them.
//!
//! Only options that take a value need a description; anything else that starts with `-` is a switch. Options keep
//! their order and spelling, so that a program of another version still sees what the user wrote.

/// How an option takes its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    /// The next argument.
    One,
    /// The next argument unless it is an option.
    Maybe,
    /// All arguments up to the next option.
    Many,
}

/// One option as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Opt {
    /// Its name with the dashes, without `=value`.
    pub(crate) name: String,
    /// Its values.
    pub(crate) values: Vec<String>,
    /// The words it was written with.
    pub(crate) words: Vec<String>,
}

/// The arguments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Args {
    /// Options in order.
    pub(crate) options: Vec<Opt>,
    /// Everything else in order.
    pub(crate) rest: Vec<String>,
}

impl Args {
    /// Takes `words` apart. `takes` describes each option by its name.
    pub(crate) fn parse(words: &[String], takes: fn(&str) -> Option<Takes>) -> Self {
        let mut args = Self::default();
        let mut words = words.iter().peekable();
        while let Some(word) = words.next() {
            if word == "--" {
                args.rest.extend(words.cloned());
                break;
            }
            if !word.starts_with('-') || word == "-" {
                args.rest.push(word.clone());
                continue;
            }
            let mut opt = Opt {
                name: word.clone(),
                values: Vec::new(),
                words: vec![word.clone()],
            };
            if let Some((name, value)) = word.split_once('=').filter(|_| word.starts_with("--")) {
                opt.name = name.to_owned();
                opt.values.push(value.to_owned());
                args.options.push(opt);
                continue;
            }
            let takes = takes(word);
            let dashed = |w: &&String| w.starts_with('-') && w.len() > 1;
            match takes {
                None => {}
                Some(Takes::One) => opt.values.extend(words.next().cloned()),
                Some(Takes::Maybe) => opt.values.extend(words.next_if(|w| !dashed(w)).cloned()),
                Some(Takes::Many) => {
                    while let Some(value) = words.next_if(|w| !dashed(w)) {
                        opt.values.push(value.clone());
                    }
                }
            }
            opt.words.extend(opt.values.iter().cloned());
            args.options.push(opt);
        }
        args
    }

    /// Returns the last option with one of these names.
    pub(crate) fn get(&self, names: &[&str]) -> Option<&Opt> {
        self.options
            .iter()
            .rev()
            .find(|o| names.contains(&o.name.as_str()))
    }

    /// Returns whether one of these options was given.
    pub(crate) fn has(&self, names: &[&str]) -> bool {
        self.get(names).is_some()
    }

    /// Returns the value of the last option with one of these names.
    pub(crate) fn value(&self, names: &[&str]) -> Option<&str> {
        self.get(names)?.values.first().map(String::as_str)
    }

    /// Returns the words of all options but those with these names.
    pub(crate) fn words_without(&self, names: &[&str]) -> Vec<String> {
        self.options
            .iter()
            .filter(|o| !names.contains(&o.name.as_str()))
            .flat_map(|o| o.words.iter().cloned())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(name: &str) -> Option<Takes> {
        match name {
            "--model" => Some(Takes::One),
            "--resume" => Some(Takes::Maybe),
            "--tools" => Some(Takes::Many),
            _ => None,
        }
    }

    fn parse(line: &str) -> Args {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Args::parse(&words, takes)
    }

    #[test]
    fn values_are_told_from_the_prompt() {
        let args = parse("-p hello --model m --resume --tools a b --verbose x -- -y");
        assert_eq!(args.rest, ["hello", "x", "-y"]);
        assert_eq!(args.value(&["--model"]), Some("m"));
        assert_eq!(args.value(&["--resume"]), None);
        assert!(args.has(&["--resume"]) && args.has(&["-p", "--print"]));
        assert_eq!(
            args.words_without(&["--resume", "-p"]),
            ["--model", "m", "--tools", "a", "b", "--verbose"]
        );
        assert_eq!(parse("--model=a=b").value(&["--model"]), Some("a=b"));
        assert_eq!(parse("--model").value(&["--model"]), None);
    }
}
