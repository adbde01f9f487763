//! Plots as SVG: panels with a common vertical axis, a legend beside them, and a caption.

#![expect(clippy::cast_possible_truncation, reason = "places on an axis are those of pixels")]

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;

use super::Outcome;

/// Where numbers are on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From zero on.
    Linear,
    Log,
    /// As `Log`, but with a place for zero, before one.
    LogAndZero,
}

#[derive(Debug)]
pub(crate) struct Plot {
    /// The name of the file.
    pub(crate) name: &'static str,
    pub(crate) title: String,
    pub(crate) panels: Vec<Panel>,
    /// What the vertical axis shows, its scale, and how its numbers are written.
    pub(crate) y: (&'static str, Scale, fn(f64) -> String),
}

#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    /// What the horizontal axis shows, its scale, and how its numbers are written.
    pub(crate) x: (&'static str, Scale, fn(u64) -> String),
    pub(crate) curves: Vec<Curve>,
}

#[derive(Debug)]
pub(crate) struct Curve {
    /// Its name in the legend. Curves of several panels with the same name have one entry.
    pub(crate) name: &'static str,
    pub(crate) is_dashed: bool,
    pub(crate) points: Vec<(u64, f64)>,
}

const WIDTH: u32 = 960;
const HEIGHT: u32 = 420;
const TITLE_HEIGHT: u32 = 34;
const CAPTION_HEIGHT: u32 = 17;
const LEGEND_WIDTH: u32 = 190;
/// Characters of a caption's line.
const CAPTION_LEN_MAX: usize = 140;
/// Colours that people with any sight tell apart.
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
    RGBColor(0, 0, 0),
];
const GRID: RGBColor = RGBColor(225, 225, 225);
const INK: RGBColor = RGBColor(50, 50, 50);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Plot {
    /// The plot as SVG, with these sentences below it.
    pub(crate) fn draw(&self, caption: &[String]) -> Outcome<String> {
        let lines: Vec<String> = caption.iter().flat_map(|sentence| broken(sentence)).collect();
        let height = HEIGHT + CAPTION_HEIGHT * u32::try_from(lines.len())? + 8;
        let mut svg = String::new();
        self.draw_on(&SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area(), &lines)?;
        Ok(svg)
    }

    fn draw_on(&self, root: &Area<'_>, lines: &[String]) -> Outcome<()> {
        root.fill(&WHITE)?;
        root.draw(&Text::new(self.title.clone(), (14, 10), font(17)))?;
        let (above, below) = root.split_vertically(HEIGHT);
        for (number, line) in (0..).zip(lines) {
            below.draw(&Text::new(line.clone(), (14, 4 + 17 * number), font(11)))?;
        }
        let (charts, legend) = above.margin(TITLE_HEIGHT, 0, 0, 0).split_horizontally(WIDTH - LEGEND_WIDTH);
        let y = Axis::of(self.values(), (self.y.1, self.y.2));
        let areas = charts.split_evenly((1, self.panels.len()));
        for (index, (panel, area)) in self.panels.iter().zip(areas).enumerate() {
            self.draw_panel(panel, &area, (&y, index == 0))?;
        }
        self.draw_legend(&legend)?;
        Ok(root.present()?)
    }

    fn values(&self) -> Vec<f64> {
        let curves = self.panels.iter().flat_map(|panel| &panel.curves);
        curves.flat_map(|curve| curve.points.iter().map(|(_, y)| *y)).collect()
    }

    /// The names of the curves, each once, and whether it is dashed.
    fn names(&self) -> Vec<(&'static str, bool)> {
        let mut names = Vec::new();
        for curve in self.panels.iter().flat_map(|panel| &panel.curves) {
            if !names.contains(&(curve.name, curve.is_dashed)) {
                names.push((curve.name, curve.is_dashed));
            }
        }
        names
    }

    fn color(&self, name: &str) -> RGBColor {
        let index = self.names().iter().position(|(it, _)| *it == name).unwrap_or(0);
        COLORS.iter().cycle().nth(index).copied().unwrap_or(INK)
    }

    fn draw_panel(&self, panel: &Panel, area: &Area<'_>, (y, is_first): (&Axis, bool)) -> Outcome<()> {
        let (x_label, x_scale, x_text) = panel.x;
        let mut places: Vec<u64> =
            panel.curves.iter().flat_map(|curve| curve.points.iter().map(|(x, _)| *x)).collect();
        places.sort_unstable();
        places.dedup();
        let x = Axis::at(&places, (x_scale, x_text));
        let mut chart = ChartBuilder::on(area)
            .caption(panel.title, font(13))
            .margin(6)
            .margin_right(14)
            .x_label_area_size(44)
            .y_label_area_size(78)
            .build_cartesian_2d(x, y.clone())?;
        let mut mesh = chart.configure_mesh();
        mesh.bold_line_style(GRID).light_line_style(TRANSPARENT).axis_style(INK).label_style(font(11));
        mesh.x_desc(x_label).axis_desc_style(font(12));
        if is_first {
            mesh.y_desc(self.y.0);
        }
        mesh.draw()?;
        for curve in &panel.curves {
            let color = self.color(curve.name);
            let place =
                |(place, value): &(u64, f64)| (place_of(*place as f64, x_scale), place_of(*value, self.y.1));
            // What took no time has no place on a logarithmic axis.
            let has_place = |(_, value): &&(u64, f64)| self.y.1 == Scale::Linear || *value > 0.0;
            let points: Vec<(f64, f64)> = curve.points.iter().filter(has_place).map(place).collect();
            if curve.is_dashed {
                chart.draw_series(DashedLineSeries::new(points.clone(), 5, 4, color.stroke_width(2)))?;
            } else {
                chart.draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?;
            }
            chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, color.filled())))?;
        }
        Ok(())
    }

    fn draw_legend(&self, area: &Area<'_>) -> Outcome<()> {
        for (number, (name, is_dashed)) in (0..).zip(self.names()) {
            let y = 40 + 22 * number;
            let color = self.color(name);
            let parts: &[(i32, i32)] = if is_dashed { &[(4, 10), (14, 20), (24, 30)] } else { &[(4, 30)] };
            for (from, to) in parts {
                area.draw(&PathElement::new([(*from, y), (*to, y)], color.stroke_width(2)))?;
            }
            area.draw(&Circle::new((17, y), 3, color.filled()))?;
            area.draw(&Text::new(name, (38, y - 6), font(12)))?;
        }
        Ok(())
    }
}

fn font(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

fn broken(sentence: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in sentence.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= CAPTION_LEN_MAX => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The place of a number on an axis.
fn place_of(number: f64, scale: Scale) -> f64 {
    match scale {
        Scale::Linear => number,
        Scale::Log => number.log10(),
        // As far before one as two is behind it.
        Scale::LogAndZero if number < 1.0 => -(2_f64.log10()),
        Scale::LogAndZero => number.log10(),
    }
}

/// An axis with its marks: places and texts.
#[derive(Clone, Debug)]
struct Axis {
    from: f64,
    to: f64,
    marks: Vec<(f64, String)>,
}

impl Axis {
    /// An axis with a mark at each of these numbers.
    fn at(numbers: &[u64], (scale, text): (Scale, fn(u64) -> String)) -> Self {
        let marks: Vec<(f64, String)> =
            numbers.iter().map(|number| (place_of(*number as f64, scale), text(*number))).collect();
        let from = marks.first().map_or(0.0, |(place, _)| *place);
        let to = marks.last().map_or(1.0, |(place, _)| *place).max(from + 0.1);
        let space = (to - from) * 0.05;
        Self { from: from - space, to: to + space, marks }
    }

    /// An axis that has all of these numbers, with marks at round ones.
    fn of(numbers: Vec<f64>, (scale, text): (Scale, fn(f64) -> String)) -> Self {
        let max = numbers.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        if scale == Scale::Linear {
            let step = round_step(max / 5.0);
            let marks = (0..=6).map(|number| f64::from(number) * step).filter(|mark| *mark <= max * 1.1);
            return Self {
                from: 0.0,
                to: max * 1.1,
                marks: marks.map(|mark| (mark, short(&text(mark)))).collect(),
            };
        }
        let min = numbers.into_iter().filter(|number| *number > 0.0).fold(max, f64::min);
        let (from, to) = (min.log10() - 0.1, max.log10() + 0.1);
        let steps: &[f64] = match to - from {
            decades if decades > 4.0 => &[1.0],
            decades if decades > 1.7 => &[1.0, 3.0],
            _ => &[1.0, 2.0, 3.0, 5.0, 7.0],
        };
        let all = (-9..13).flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
        let marks = all.filter(|mark| (from..to).contains(&mark.log10()));
        Self { from, to, marks: marks.map(|mark| (mark.log10(), short(&text(mark)))).collect() }
    }

    /// What is written at a mark.
    fn text(&self, place: f64) -> String {
        let near = |(it, _): &&(f64, String)| (it - place).abs() < 1e-9;
        self.marks.iter().find(near).map_or_else(String::new, |(_, text)| text.clone())
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (value - self.from) / (self.to - self.from);
        from + (share * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let places = self.marks.iter().map(|(place, _)| *place);
        if hint.weight().allow_light_points() { Vec::new() } else { places.collect() }
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, place: &f64) -> String {
        self.text(*place)
    }
}

/// The text of a round number, without zeros behind its point.
fn short(text: &str) -> String {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number} {unit}")
}

/// The next round number: one, two or five times a power of ten.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|step| *step >= least).unwrap_or(least)
}
