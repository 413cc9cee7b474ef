//! The page around the pictures: one file, no scripts, for light and dark screens and for paper.

use super::svg::escape;

/// Colours as names, so that one picture serves every medium.
const STYLE: &str = r#"
:root { color-scheme: light dark; --back: #ffffff; --text: #1b1f24; --quiet: #59626c; --grid: #d8dde3; --band: #ece5cf;
  --faster: #2f7d5b; --slower: #b4532f; --first: #9aaec2; --second: #2a6a9c; --mark: #1b1f24; --alarm: #a1281b; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --text: #e6e9ec; --quiet: #9aa4ae; --grid: #333a42;
  --band: #3a3524; --faster: #4fae83; --slower: #d9794f; --first: #5f7488; --second: #5ea3d8; --mark: #f2f4f6; --alarm: #ff8d7a; } }
body { background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem;
  padding: 1.5rem; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { border-top: 1px solid var(--grid); margin-top: 2.5rem; padding-top: 1rem; }
h3 { margin: 2rem 0 .25rem; font-size: 1.05rem; } p { max-width: 46rem; }
.quiet, figcaption { color: var(--quiet); font-size: .9rem; } .alarm { color: var(--alarm); font-weight: 600; }
figure { margin: .5rem 0 1.5rem; } svg { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .82rem; margin: .75rem 0; }
caption { text-align: left; color: var(--quiet); padding-bottom: .25rem; }
th, td { border-bottom: 1px solid var(--grid); padding: .25rem .75rem .25rem 0; text-align: left; vertical-align: top; }
code, .id { font-family: ui-monospace, monospace; font-size: .92em; }
svg text { fill: var(--text); font: 13px system-ui, sans-serif; } svg .about, svg .tick, svg .axis { fill: var(--quiet); font-size: 11px; }
svg .label { font-weight: 600; } svg .value { font-variant-numeric: tabular-nums; }
.band { fill: var(--band); } .grid { stroke: var(--grid); } .one { stroke: var(--mark); stroke-width: 1.5; }
.bar { fill-opacity: .55; } .faster { fill: var(--faster); } .slower { fill: var(--slower); }
.first { fill: var(--first); fill-opacity: 1; } .second { fill: var(--second); fill-opacity: 1; }
.interval { stroke: var(--mark); stroke-width: 2; } .floor { stroke: var(--mark); stroke-width: 2; }
.sample { fill: var(--mark); fill-opacity: .75; } .far { fill: none; stroke: var(--alarm); stroke-width: 2; }
.denominator { fill: var(--mark); }
@media print { :root { color-scheme: light; --back: #ffffff; --text: #000000; --quiet: #444444; --grid: #bbbbbb; --band: #eeeeee;
  --faster: #2f7d5b; --slower: #b4532f; --first: #9aaec2; --second: #2a6a9c; --mark: #000000; --alarm: #a1281b; }
  body { max-width: none; padding: 0; font-size: 11pt; } figure, table { break-inside: avoid; } h2, h3 { break-after: avoid; } }
"#;

/// The whole file.
pub(crate) fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// A picture with a heading of its own and what stands under it. `drawing` and `caption` are HTML.
pub(crate) fn figure(title: &str, drawing: &str, caption: &str) -> String {
    format!("<h3>{}</h3>\n<figure>\n{drawing}<figcaption>{caption}</figcaption>\n</figure>\n", escape(title))
}

/// A table; the first cell of each row names it.
pub(crate) fn table(caption: &str, head: &[&str], rows: &[Vec<String>]) -> String {
    let head: String = head.iter().map(|h| format!("<th scope=\"col\">{}</th>", escape(h))).collect();
    let cell = |(n, text): (usize, &String)| match n {
        0 => format!("<th scope=\"row\">{}</th>", escape(text)),
        _ => format!("<td>{}</td>", escape(text)),
    };
    let row = |cells: &Vec<String>| format!("<tr>{}</tr>\n", cells.iter().enumerate().map(cell).collect::<String>());
    format!(
        "<div class=\"scroll\">\n<table>\n<caption>{}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{}</tbody>\n</table>\n</div>\n",
        escape(caption),
        rows.iter().map(row).collect::<String>()
    )
}

/// A paragraph of plain text.
pub(crate) fn paragraph(class: &str, text: &str) -> String {
    format!("<p class=\"{class}\">{}</p>\n", escape(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let html = page("A <title>", &table("c", &["h"], &[vec!["<i>".into(), "&".into()]]));
        for outside in ["<script", "http://", "https://", "url(", "@import", "<link", "<i>"] {
            assert!(!html.contains(outside), "{outside}");
        }
        assert!(html.contains("prefers-color-scheme: dark") && html.contains("@media print"));
        assert!(html.contains("<th scope=\"row\">&lt;i&gt;</th><td>&amp;</td>"));
    }
}
